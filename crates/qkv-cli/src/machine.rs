//! What the command asks of the machine: threads, the instruction set, memory used.

use anyhow::{anyhow, bail};
use qkv::Simd;

/// More threads than any machine has cores only get in each other's way.
const MOST_THREADS: usize = 1024;

/// The threads that the engine runs on.
pub struct Threads(Option<rayon::ThreadPool>);

impl Threads {
    /// As many as asked for, or one for each core.
    pub fn new(count: Option<usize>) -> anyhow::Result<Self> {
        let Some(count) = count else { return Ok(Self(None)) };
        if count > MOST_THREADS {
            bail!("--threads: got {count}, want 1 to {MOST_THREADS}");
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(count).build();
        Ok(Self(Some(pool.map_err(|error| anyhow!("--threads {count}: cannot start them: {error}"))?)))
    }

    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.0 {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    pub fn count(&self) -> usize {
        self.run(rayon::current_num_threads)
    }
}

/// The instruction set that the environment variable `QKV_SIMD` asks for.
pub fn simd_from_environment() -> anyhow::Result<Option<Simd>> {
    let Some(name) = std::env::var_os("QKV_SIMD").filter(|name| !name.is_empty()) else { return Ok(None) };
    let name = name.to_string_lossy();
    let names = || Simd::ALL.iter().map(|simd| simd.name()).collect::<Vec<_>>().join(", ");
    match name.parse::<Simd>() {
        Ok(simd) if simd.is_available() => Ok(Some(simd)),
        Ok(simd) => bail!("QKV_SIMD: this machine has no {simd}; its best is {}", Simd::best()),
        Err(_) => bail!("QKV_SIMD: got {name:?}, want one of {}", names()),
    }
}

/// The most memory that this process ever held, in bytes, where the system tells.
pub fn peak_bytes() -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kibibytes * 1024)
}
