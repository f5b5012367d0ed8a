//! The instruction set, which the environment variable `QKV_SIMD` may force.

use std::sync::OnceLock;

use pyo3::PyResult;
use pyo3::exceptions::PyValueError;
use qkv::Simd;

/// What the environment asks for, read once.
///
/// # Errors
/// If it names no instruction set, or one that this machine has not.
pub fn forced() -> PyResult<Option<Simd>> {
    static FORCED: OnceLock<Result<Option<Simd>, String>> = OnceLock::new();
    FORCED.get_or_init(read).clone().map_err(PyValueError::new_err)
}

fn read() -> Result<Option<Simd>, String> {
    let Some(name) = std::env::var_os("QKV_SIMD").filter(|name| !name.is_empty()) else { return Ok(None) };
    let name = name.to_string_lossy();
    match name.parse::<Simd>() {
        Ok(simd) if simd.is_available() => Ok(Some(simd)),
        Ok(simd) => Err(format!("QKV_SIMD: this machine has no {simd}; its best is {}", Simd::best())),
        Err(_) => {
            let names = Simd::ALL.map(|simd| simd.name()).join(", ");
            Err(format!("QKV_SIMD: got {name:?}, want one of {names}"))
        }
    }
}
