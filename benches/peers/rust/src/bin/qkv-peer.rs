//! This engine as a peer of `compare.py`.

use std::hint::black_box;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use half::{bf16, f16};
use ndarray::{Array4, Ix4};
use qkv::{Alignment, Attention};
use qkv_io::{Bundle, Dtype, ReadOptions, WriteOptions, read, write};
use qkv_peers::{Case, Loaded, serve};

fn main() -> ExitCode {
    serve(load)
}

fn load(case: &Case) -> Result<Loaded> {
    let bundle = read(&case.file, &ReadOptions::new())?;
    match bundle.get("query").context("no query")?.dtype() {
        Dtype::F32 => loaded::<f32>(case, bundle),
        Dtype::F16 => loaded::<f16>(case, bundle),
        Dtype::Bf16 => loaded::<bf16>(case, bundle),
        other => bail!("not a type that is compared: {other:?}"),
    }
}

fn loaded<T>(case: &Case, bundle: Bundle) -> Result<Loaded>
where
    T: qkv::Element<Accumulator: qkv_io::Element> + qkv_io::Element,
{
    let [query, key, value] = ["query", "key", "value"].map(|name| array::<T>(&bundle, name));
    let (query, key, value) = (query?, key?, value?);
    let mask = bundle.get("mask").map(|_| array::<bool>(&bundle, "mask")).transpose()?;
    let bias = bundle.get("bias").map(|_| array::<f32>(&bundle, "bias")).transpose()?;
    let (causal, window, softcap, lse) = (case.causal, case.window, case.softcap, case.lse);
    let call = Box::new(move |file: Option<&std::path::Path>| {
        let mut attention = Attention::new();
        if causal {
            attention = attention.causal(Alignment::TopLeft);
        }
        if let Some(window) = window {
            attention = attention.window(Some(window - 1), None);
        }
        if let Some(softcap) = softcap {
            attention = attention.softcap(softcap);
        }
        if let Some(mask) = &mask {
            attention = attention.mask(mask.view());
        }
        if let Some(bias) = &bias {
            attention = attention.bias(bias.view());
        }
        let call = attention.call(query.view(), key.view(), value.view());
        let result = if lse { call.lse().run() } else { call.run() }?;
        let Some(file) = file else {
            black_box(&result);
            return Ok(());
        };
        let mut arrays = vec![("output", result.output.view().into())];
        if let Some(lse) = &result.lse {
            arrays.push(("lse", lse.view().into()));
        }
        Ok(write(file, &arrays, &WriteOptions::new())?)
    });
    Ok(Loaded { how: "Attention".into(), call })
}

/// A copy in memory, as the other engines have, and not the mapped file.
fn array<T: qkv_io::Element>(bundle: &Bundle, name: &str) -> Result<Array4<T>> {
    let data = bundle.get(name).and_then(|tensor| tensor.data::<T>());
    let array = data.cloned().with_context(|| format!("no {name} of that type"))?.into_array();
    Ok(array.into_dimensionality::<Ix4>()?)
}
