//! candle's fused attention on the CPU as a peer of `compare.py`.
//!
//! Its tensors are `(batch, len, heads, dim)`; they are laid out so before time is taken. Windows and lengths go to the
//! kernel for packed sequences, all else to the one that chooses by itself.

use std::collections::HashMap;
use std::hint::black_box;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use candle_core::safetensors::{self, BufferedSafetensors};
use candle_core::{DType, Device, Tensor};
use candle_nn::attention::{AttnMask, flash_attn, flash_attn_varlen_cpu};
use half::{bf16, f16};
use qkv_peers::{Case, Loaded, serve};

fn main() -> ExitCode {
    serve(load)
}

fn load(case: &Case) -> Result<Loaded> {
    // One by one, since candle has no booleans.
    let arrays = BufferedSafetensors::new(std::fs::read(&case.file)?)?;
    let array = |name: &str| arrays.load(name, &Device::Cpu);
    let [query, key, value] = [array("query")?, array("key")?, array("value")?];
    // The kernels take the values' dim for that of the queries and do not look.
    ensure!(query.dims()[3] == value.dims()[3], "values must have the dim of the queries");
    let [query, key, value] = [by_len(&query)?, by_len(&key)?, by_len(&value)?];
    if case.window.is_some() || case.key_lengths.is_some() {
        return packed(case, &query, &key, &value);
    }
    ensure!(
        arrays.get("mask").is_err() && arrays.get("bias").is_err(),
        "a mask is no part of this comparison"
    );

    let causal = case.causal;
    let kernel = match query.dtype() {
        DType::F32 => flash_attn::<f32>,
        DType::F16 => flash_attn::<f16>,
        DType::BF16 => flash_attn::<bf16>,
        other => bail!("not a type that is compared: {other:?}"),
    };
    let scale = scale(&query);
    let call = Box::new(move |file: Option<&std::path::Path>| {
        let mask = if causal { AttnMask::causal() } else { AttnMask::None };
        let output = kernel(&query, &key, &value, scale, mask, None, None)?;
        finish(output, file)
    });
    Ok(Loaded { how: "flash_attn".into(), call })
}

fn packed(case: &Case, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Loaded> {
    let (batch, len_query, heads, dim) = query.dims4()?;
    let len_key = key.dims()[1];
    let lengths = case.key_lengths.clone().unwrap_or_else(|| vec![len_key; batch]);
    let keep = |all: &Tensor| -> Result<Tensor> {
        let rows = lengths.iter().enumerate().map(|(b, &len)| all.get(b)?.narrow(0, 0, len));
        Ok(Tensor::cat(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)?)
    };
    let (key, value) = (keep(key)?, keep(value)?);
    let scale = scale(query);
    let query = query.reshape((batch * len_query, heads, dim))?;
    let lens_query = Tensor::new(vec![len_query as u32; batch], &Device::Cpu)?;
    let lens_key = Tensor::new(lengths.iter().map(|&len| len as u32).collect::<Vec<_>>(), &Device::Cpu)?;
    let (causal, left) = (case.causal, case.window.map(|window| window as usize - 1));
    let call = Box::new(move |file: Option<&std::path::Path>| {
        let (max_query, max_key) = (len_query, len_key);
        let output = flash_attn_varlen_cpu(
            &query,
            &key,
            &value,
            None,
            &lens_query,
            &lens_key,
            max_query,
            max_key,
            scale,
            causal,
            left,
            None,
        )?;
        if file.is_none() {
            return finish(output, None);
        }
        finish(output.reshape((batch, len_query, heads, dim))?.transpose(1, 2)?, file)
    });
    Ok(Loaded { how: "flash_attn_varlen_cpu".into(), call })
}

/// `(batch, heads, len, dim)` to candle's `(batch, len, heads, dim)`.
fn by_len(array: &Tensor) -> Result<Tensor> {
    Ok(array.transpose(1, 2)?.contiguous()?)
}

fn scale(query: &Tensor) -> f32 {
    (1.0 / (query.dims()[3] as f64).sqrt()) as f32
}

fn finish(output: Tensor, file: Option<&std::path::Path>) -> Result<()> {
    match file {
        Some(file) => safetensors::save(&HashMap::from([("output", output.contiguous()?)]), file)?,
        None => drop(black_box(output)),
    }
    Ok(())
}
