//! The generator draws torch's numbers: those of `tests/data/torch-random.safetensors`, whose arrays are named
//! `kind/seed/count`, and the two lessons that users of torch begin with.

use std::path::Path;

use ndarray::ArrayD;
use qkv::{Error, Generator};
use qkv_io::{Bundle, ReadOptions};

fn read(path: &str) -> Bundle {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    qkv_io::read(path, &ReadOptions::new()).expect("a file")
}

fn array(bundle: &Bundle, name: &str) -> ArrayD<f32> {
    let tensor = bundle.get(name).unwrap_or_else(|| panic!("no {name}"));
    tensor.data::<f32>().expect("f32").view().to_owned()
}

/// torch's arrays of one kind with their seeds.
fn torch(kind: &str) -> Vec<(u64, ArrayD<f32>)> {
    let bundle = read("tests/data/torch-random.safetensors");
    let of_kind = |name: &str| {
        let (own, rest) = name.split_once('/').expect("kind/seed/count");
        let (seed, _) = rest.split_once('/').expect("seed/count");
        (own == kind).then(|| (seed.parse().expect("a number"), array(&bundle, name)))
    };
    let arrays: Vec<_> = bundle.names().filter_map(of_kind).collect();
    assert_eq!(arrays.len(), 3 * 7, "seeds times counts");
    arrays
}

/// The distance in ulp; counted over zero, so that +0 and -0 are 1 apart.
fn ulps(a: f32, b: f32) -> u32 {
    let place =
        |x: f32| if x.is_sign_negative() { -1 - i64::from((-x).to_bits()) } else { x.to_bits().into() };
    place(a).abs_diff(place(b)).try_into().expect("within the range of f32")
}

/// How many numbers differ, and the largest difference in ulp.
fn difference(got: &ArrayD<f32>, wanted: &ArrayD<f32>) -> (usize, u32) {
    assert_eq!(got.shape(), wanted.shape());
    let distances = || got.iter().zip(wanted).map(|(&a, &b)| ulps(a, b));
    (distances().filter(|&ulps| ulps > 0).count(), distances().max().unwrap_or(0))
}

/// Checks that the bits are the same.
#[track_caller]
fn assert_same(got: &ArrayD<f32>, wanted: &ArrayD<f32>, what: &str) {
    let (different, ulps) = difference(got, wanted);
    assert!(different == 0, "{what}: {different} of {} numbers differ, by {ulps} ulp at most", got.len());
}

#[test]
fn uniform_numbers_are_those_of_torch() {
    for (seed, wanted) in torch("rand") {
        let got = Generator::new(seed).rand(wanted.shape()).unwrap();
        assert_same(&got, &wanted, &format!("rand from seed {seed}"));
    }
}

/// Fewer than 16 and more, and numbers that are no multiples of 16.
#[test]
fn normal_numbers_are_those_of_torch() {
    for (seed, wanted) in torch("randn") {
        let got = Generator::new(seed).randn(wanted.shape()).unwrap();
        assert_same(&got, &wanted, &format!("randn from seed {seed}"));
    }
}

/// The first lesson. Its matrices have 9 numbers, so halves of pairs go from one to the next.
#[test]
fn the_first_lesson_is_drawn() {
    let lesson = read("../qkv-cli/tests/data/lesson-seed42.safetensors");
    let mut generator = Generator::new(42);
    assert_same(&generator.rand(&[5, 3]).unwrap(), &array(&lesson, "X"), "X");
    for name in ["W_q", "W_k", "W_v"] {
        assert_same(&generator.randn(&[3, 3]).unwrap(), &array(&lesson, name), name);
    }
}

#[test]
fn the_second_lesson_is_drawn() {
    let lesson = read("../qkv-cli/tests/data/lesson-causal-seed0.safetensors");
    let mut generator = Generator::new(0);
    for name in ["q", "k", "v"] {
        assert_same(&generator.randn(&[2, 4, 5, 8]).unwrap(), &array(&lesson, name), name);
    }
}

#[test]
fn half_a_pair_waits_while_other_numbers_are_drawn() {
    let four = Generator::new(7).randn(&[4]).unwrap();
    let mut generator = Generator::new(7);
    let three = generator.randn(&[3]).unwrap();
    generator.rand(&[2]).unwrap();
    generator.randn(&[16]).unwrap();
    generator.randn(&[0]).unwrap();
    let one = generator.randn(&[]).unwrap();
    assert_eq!(three.iter().chain(&one).collect::<Vec<_>>(), four.iter().collect::<Vec<_>>());
}

#[test]
fn the_low_half_of_a_seed_counts() {
    let draw = |seed| Generator::new(seed).randn(&[40]).unwrap();
    assert_eq!(draw(5), draw(5 + (1 << 32)));
    assert_ne!(draw(5), draw(6));
}

/// A sum of squares that has gone wrong by a block would stand out.
#[test]
fn large_arrays_have_the_moments_of_their_distributions() {
    let count = 1_000_003;
    let mut generator = Generator::new(1);
    let moments = |array: ArrayD<f32>| {
        let mean = |of: fn(f64) -> f64| array.iter().map(|&x| of(x.into())).sum::<f64>() / count as f64;
        [mean(|x| x), mean(|x| x * x)]
    };
    let close = |got: [f64; 2], wanted: [f64; 2]| {
        // Five standard deviations of the mean of normal numbers' squares, the widest of the four.
        let near = got
            .iter()
            .zip(wanted)
            .all(|(got, wanted)| (got - wanted).abs() < 5.0 * (2.0 / count as f64).sqrt());
        assert!(near, "{got:?}, want {wanted:?}");
    };
    close(moments(generator.randn(&[count]).unwrap()), [0.0, 1.0]);
    close(moments(generator.rand(&[count]).unwrap()), [0.5, 1.0 / 3.0]);
}

#[test]
fn arrays_beyond_memory_are_an_error_and_draw_nothing() {
    let mut generator = Generator::new(3);
    for shape in [&[usize::MAX, 2][..], &[1 << 61], &[1 << 40, 1 << 40, 0]] {
        for result in [generator.rand(shape), generator.randn(shape)] {
            assert!(matches!(result, Err(Error::Memory { .. })), "{shape:?}: {result:?}");
        }
    }
    let error = generator.randn(&[1 << 61]).unwrap_err();
    assert_eq!(error.to_string(), format!("randn: no memory for an array of shape ({},)", 1u64 << 61));
    assert_eq!(generator.randn(&[2, 0, 3]).unwrap().shape(), [2, 0, 3]);
    assert_eq!(generator.randn(&[5]).unwrap(), Generator::new(3).randn(&[5]).unwrap());
}
