//! Any small call: it is refused, or each path gives the bits of the scalar program.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use ndarray::{Array2, Array4};
use qkv::{Alibi, Alignment, Attention, Path, Simd};

fuzz_target!(|data: &[u8]| {
    let _ = call(&mut Unstructured::new(data));
});

fn call(input: &mut Unstructured<'_>) -> Result<()> {
    let [batches, key_heads, group] = [input.int_in_range(1..=2)?, input.int_in_range(1..=2)?, input.int_in_range(1..=3)?];
    let [len_query, len_key] = [input.int_in_range(0..=70)?, input.int_in_range(0..=140)?];
    let [dim, dim_value] = [input.int_in_range(0..=9)?, input.int_in_range(0..=18)?];
    let heads = key_heads * group;
    // Any bit pattern: NaN, infinities and subnormals among them.
    let mut array = |heads, len, dim| -> Result<Array4<f32>> {
        let seed: [f32; 7] = input.arbitrary()?;
        Ok(Array4::from_shape_fn((batches, heads, len, dim), |(b, h, i, e)| seed[(b + 3 * h + 5 * i + 2 * e) % 7]))
    };
    let query = array(heads, len_query, dim)?;
    let key = array(key_heads, len_key, dim)?;
    let value = array(key_heads, len_key, dim_value)?;
    let pattern: u64 = input.arbitrary()?;
    let mask = Array2::from_shape_fn((len_query, len_key), |(i, j)| pattern >> ((7 * i + j) % 64) & 1 == 1);
    let numbers: [f32; 5] = input.arbitrary()?;
    let bias = Array2::from_shape_fn((len_query, len_key), |(i, j)| numbers[(i + 2 * j) % 5]);

    let mut attention = Attention::new().key_offset(input.int_in_range(-1..=2000)?);
    if input.arbitrary()? {
        let offset = Alignment::Offset(input.int_in_range(-300..=300)?);
        attention = attention.causal(*input.choose(&[Alignment::TopLeft, Alignment::BottomRight, offset])?);
    }
    if input.arbitrary()? {
        attention = attention.mask(mask.view());
    }
    if input.arbitrary()? {
        attention = attention.bias(bias.view());
    }
    if input.arbitrary()? {
        attention = attention.window(input.arbitrary()?, input.arbitrary()?);
    }
    if input.arbitrary()? {
        attention = attention.key_lengths([input.int_in_range(0..=150)?]);
    }
    if input.arbitrary()? {
        attention = attention.prefix([input.arbitrary()?]);
    }
    if input.arbitrary()? {
        attention = attention.softcap(input.arbitrary()?).scale(input.arbitrary()?);
    }
    if input.arbitrary()? {
        attention = attention.alibi(Alibi::Paper).sinks(vec![input.arbitrary()?; heads]);
    }
    compare(&attention, [&query, &key, &value]);
    Ok(())
}

fn compare(attention: &Attention<'_>, [query, key, value]: [&Array4<f32>; 3]) {
    let run = |path, simd| {
        let forced = attention.clone().path(path).simd(simd);
        forced.call(query.view(), key.view(), value.view()).lse().weights().run()
    };
    let Ok(oracle) = run(Path::Scalar, Simd::best()) else { return };
    for path in [Path::Prefill, Path::Decode] {
        let got = run(path, Simd::best()).expect("what the scalar program accepts, every path does");
        let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same(got.output.as_slice().unwrap(), oracle.output.as_slice().unwrap()), "{path}");
        let (got_lse, lse) = (got.lse.unwrap(), oracle.lse.as_ref().unwrap());
        assert!(same(got_lse.as_slice().unwrap(), lse.as_slice().unwrap()), "{path}");
        let (got_weights, weights) = (got.weights.unwrap(), oracle.weights.as_ref().unwrap());
        assert!(same(got_weights.as_slice().unwrap(), weights.as_slice().unwrap()), "{path}");
    }
}
