//! `qkv random`: arrays of the numbers that torch draws from a seed, in a file.

use std::collections::HashSet;
use std::io::Write;
use std::num::IntErrorKind;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use ndarray::{ArrayD, IxDyn};
use qkv::{Element, Generator, Real, bf16, f16};
use qkv_io::{Data, Tensor};
use qkv_view::show;

use crate::output;
use crate::terminal::Terminal;

#[derive(Args, Debug)]
pub struct Arguments {
    /// Lengths of axes, as in 2,4,5,8. One shape is the array x; three are q, k and v, drawn in this order
    #[arg(value_name = "SHAPE", required = true, allow_negative_numbers = true)]
    shapes: Vec<Shape>,

    /// Where the arrays go: .npy (one alone), .npz or .safetensors
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Names of the arrays, one for each SHAPE
    #[arg(long, value_name = "NAME[,NAME…]", value_delimiter = ',')]
    names: Option<Vec<String>>,

    /// As torch.manual_seed; of its bits the low 32 count
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,

    /// randn: normal numbers of mean 0 and variance 1; rand: uniform numbers from [0, 1)
    #[arg(long, value_name = "KIND", default_value = "randn")]
    kind: Kind,

    /// The type in the file. The numbers are drawn in f32: f64 holds them as they are, f16 and bf16 round them
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: Type,
}

/// The lengths of an array's axes.
#[derive(Clone, Debug)]
struct Shape(Vec<usize>);

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WANTED: &str = "want the lengths of an array's axes, as in 2,4,5,8";
        const TOO_MANY: &str = "more numbers than can be counted; want a shape that memory holds";
        if text.trim().is_empty() {
            return Err(WANTED.to_string());
        }
        let length = |part: &str| match part.trim().parse::<usize>() {
            Ok(length) => Ok(length),
            Err(error) if *error.kind() == IntErrorKind::PosOverflow => Err(TOO_MANY.to_string()),
            Err(_) => Err(format!("{part:?} is no length; {WANTED}")),
        };
        let lengths = text.split(',').map(length).collect::<Result<Vec<_>, _>>()?;
        // Lengths of 0 are left out: those of an array without numbers have their limit too.
        let count = lengths.iter().try_fold(1usize, |count, &length| count.checked_mul(length.max(1)));
        count.filter(|&count| isize::try_from(count).is_ok()).ok_or(TOO_MANY)?;
        Ok(Self(lengths))
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Randn,
    Rand,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Type {
    F32,
    F64,
    F16,
    Bf16,
}

impl Arguments {
    /// The arrays' names, in the order of the shapes.
    fn names(&self) -> anyhow::Result<Vec<&str>> {
        let count = self.shapes.len();
        let Some(names) = &self.names else {
            return match count {
                1 => Ok(vec!["x"]),
                3 => Ok(vec!["q", "k", "v"]),
                _ => bail!(
                    "SHAPE: got {count} without --names, want 1 (the array x) or 3 (q, k, v), or --names with {count} names"
                ),
            };
        };
        let shown = names.join(",");
        if names.len() != count {
            let [names, shapes] = [show::count(names.len(), "name"), show::count(count, "shape")];
            bail!("--names {shown}: got {names} for {shapes}, want as many names as shapes");
        }
        let mut seen = HashSet::new();
        for name in names {
            if name.trim().is_empty() {
                bail!("--names {shown:?}: got an empty name, want a name for each array");
            }
            if !seen.insert(name) {
                bail!("--names {shown}: got {name} twice, want names that differ");
            }
        }
        Ok(names.iter().map(String::as_str).collect())
    }

    fn draw(&self, generator: &mut Generator, shape: &[usize]) -> anyhow::Result<Tensor> {
        let drawn = match self.kind {
            Kind::Randn => generator.randn(shape),
            Kind::Rand => generator.rand(shape),
        };
        let drawn = drawn.map_err(|error| anyhow!("SHAPE: {error}; want one that memory holds"))?;
        Ok(match self.dtype {
            Type::F32 => Data::from(drawn).into(),
            Type::F64 => Data::from(converted::<f64>(&drawn)?).into(),
            Type::F16 => Data::from(converted::<f16>(&drawn)?).into(),
            Type::Bf16 => Data::from(converted::<bf16>(&drawn)?).into(),
        })
    }
}

/// The nearest numbers of another type.
fn converted<T: Element>(drawn: &ArrayD<f32>) -> anyhow::Result<ArrayD<T>> {
    let no_memory = || {
        let shape = show::shape(drawn.shape());
        format!("SHAPE: no memory for an array of shape {shape} in {}; want one that memory holds", T::NAME)
    };
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(drawn.len()).map_err(|_| anyhow!(no_memory()))?;
    numbers.extend(drawn.iter().map(|&x| T::round(T::Accumulator::from_f64(x.into()))));
    ArrayD::from_shape_vec(IxDyn(drawn.shape()), numbers).with_context(no_memory)
}

/// Always passes: there is nothing that could be wrong with what was drawn.
pub fn run(arguments: &Arguments, terminal: &mut Terminal) -> anyhow::Result<bool> {
    let names = arguments.names()?;
    let not_npy = format!("a .npy file holds one array; for {} want .npz or .safetensors", names.len());
    output::check(&arguments.output, (names.len() > 1).then_some(&not_npy))?;

    let mut generator = Generator::new(arguments.seed);
    let drawn = arguments.shapes.iter().map(|Shape(shape)| arguments.draw(&mut generator, shape));
    let drawn = drawn.collect::<Result<Vec<_>, _>>()?;
    let arrays: Vec<_> = names.into_iter().zip(drawn.iter().map(Tensor::view)).collect();
    // Before any words, so that it is written even if nobody reads them.
    output::write(&arguments.output, &arrays)?;

    let kind = match arguments.kind {
        Kind::Randn => "randn",
        Kind::Rand => "rand",
    };
    for (name, array) in &arrays {
        let (shape, dtype, seed) = (show::shape(array.shape()), array.dtype(), arguments.seed);
        writeln!(terminal, "{name:<8} {shape}  {dtype}, {kind}, seed {seed}")?;
    }
    writeln!(terminal, "{}", output::line(&arguments.output, &arrays))?;
    Ok(true)
}
