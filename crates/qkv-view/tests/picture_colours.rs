//! Pixels have precisely the colours of the scale, and the bar tells the truth.

use ndarray::{Array2, ArrayView2, array};
use qkv_view::picture::{Colours, Heatmap, Map, Panels, RenderError, Scale, Sheet, png};

use skrifa::MetadataProvider;

use looked_at::{Pixels, Rect, look};

mod looked_at;

fn numbers(rows: usize, columns: usize) -> Array2<f64> {
    let mut values = Array2::from_shape_fn((rows, columns), |(i, j)| {
        let x = ((i * 7919 + j * 104_729) % 1009) as f64 / 1009.0;
        x * x * x - 0.1
    });
    for (index, special) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().enumerate() {
        values[[rows / 2, index.min(columns - 1)]] = special;
    }
    values
}

/// Each pixel of each cell of an image.
fn assert_exact(pixels: &Pixels, place: Rect, times: usize, values: ArrayView2<'_, f64>, scale: &Scale) {
    let [left, top, width, height] =
        [place.x, place.y, place.width, place.height].map(|side| side as usize * times);
    let (wide, high) = (width / values.ncols(), height / values.nrows());
    assert_eq!((wide * values.ncols(), high * values.nrows()), (width, height), "whole pixels");
    for y in 0..height {
        for x in 0..width {
            let value = values[[y / high, x / wide]];
            assert_eq!(pixels.at(left + x, top + y), scale.colour(value), "{value} at {x}, {y}");
        }
    }
}

fn all_colours() -> Vec<Colours> {
    let sequential = Colours::sequential();
    vec![
        sequential,
        sequential.square_root(),
        sequential.range(0.0, 0.3).map(Map::Magma),
        sequential.map(Map::Cividis),
        sequential.map(Map::Blues),
        Colours::diverging(),
    ]
}

#[test]
fn pixels_of_an_image_have_the_colours_of_their_numbers() {
    for colours in all_colours() {
        for (rows, columns) in [(40, 40), (300, 17), (1, 500)] {
            let values = numbers(rows, columns);
            let map = Heatmap::new(values.view()).colours(colours);
            let svg = map.svg();
            for times in [1, 2] {
                let pixels = Pixels::of(&svg, times as f32);
                assert_exact(&pixels, look(&svg).images[0], times, values.view(), &map.scale());
            }
        }
    }
}

#[test]
fn cells_with_numbers_have_the_colours_of_their_numbers() {
    let values = numbers(6, 9);
    for colours in all_colours() {
        let map = Heatmap::new(values.view()).colours(colours);
        let svg = map.svg();
        let looked = look(&svg);
        for times in [1.0, 1.5, 3.0] {
            let pixels = Pixels::of(&svg, times);
            for (value, (cell, _)) in values.iter().zip(&looked.crisp) {
                // The corners have no digits.
                for (across, down) in [(2.0, 2.0), (cell.width - 3.0, 2.0), (2.0, cell.height - 3.0)] {
                    let [x, y] =
                        [cell.x + across, cell.y + down].map(|place| (place * f64::from(times)) as usize);
                    assert_eq!(pixels.at(x, y), map.scale().colour(*value), "{value}, {times} times");
                }
            }
        }
    }
}

#[test]
fn edges_of_cells_are_not_smoothed() {
    // Numbers that are too long to stand in the cells.
    let values = numbers(6, 9) * -1e-300;
    let map = Heatmap::new(values.view());
    let svg = map.svg();
    let cells = look(&svg).crisp;
    let (first, last) = (cells[0].0, cells[6 * 9 - 1].0);
    let scale = map.scale();
    let colours: Vec<_> = values.iter().map(|x| scale.colour(*x)).chain([[255; 3]]).collect();
    for times in [1.0, 1.5, 2.7] {
        let pixels = Pixels::of(&svg, times as f32);
        let inside = |from: f64, to: f64| (from * times) as usize + 1..(to * times) as usize - 1;
        for y in inside(first.y, last.y + last.height) {
            for x in inside(first.x, last.x + last.width) {
                assert!(colours.contains(&pixels.at(x, y)), "{:?} at {x}, {y}", pixels.at(x, y));
            }
        }
    }
}

#[test]
fn a_thousand_bins_are_a_thousand_pixels() {
    let values = numbers(1024, 1024);
    let map = Heatmap::new(values.view());
    let svg = map.svg();
    let place = look(&svg).images[0];
    assert_eq!((place.width, place.height), (1024.0, 1024.0));
    assert_exact(&Pixels::of(&svg, 1.0), place, 1, values.view(), &map.scale());
}

#[test]
fn what_is_not_finite_moves_no_colour() {
    let mut values = numbers(30, 30).mapv(|x| if x.is_finite() { x } else { 0.0 });
    let before = Heatmap::new(values.view()).scale();
    values[[0, 1]] = f64::NAN;
    values[[0, 2]] = f64::INFINITY;
    values[[0, 3]] = f64::NEG_INFINITY;
    assert_eq!(Heatmap::new(values.view()).scale(), before);
    for colours in all_colours() {
        let scale = colours.scale(values.iter().copied());
        let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|x| scale.colour(x));
        let finite: Vec<_> = (0..=1000).map(|x| scale.colour(f64::from(x) / 1000.0 - 0.1)).collect();
        assert!(specials.iter().all(|special| !finite.contains(special)));
        assert!(specials[0] != specials[1] && specials[1] != specials[2] && specials[0] != specials[2]);
    }
}

#[test]
fn ticks_of_the_bar_stand_at_their_colours() {
    let values = numbers(60, 60);
    for colours in all_colours() {
        let map = Heatmap::new(values.view()).colours(colours);
        let svg = map.svg();
        let looked = look(&svg);
        let pixels = Pixels::of(&svg, 1.0);
        let bar = looked.images[1];
        let ticks: Vec<_> = looked.texts.iter().filter(|text| text.x > bar.x + bar.width).collect();
        assert!(ticks.len() >= 3, "{}", ticks.len());
        for tick in ticks {
            let number = tick.content.trim_start_matches(['≥', '≤', ' ']).replace('−', "-");
            let number: f64 = number.parse().expect("a number");
            let y = tick.y.clamp(bar.y, bar.y + bar.height - 1.0);
            let (seen, told) = (pixels.at(bar.x as usize + 7, y as usize), map.scale().colour(number));
            let apart = (0..3).map(|part| seen[part].abs_diff(told[part])).max();
            assert!(apart <= Some(12), "{number}: {seen:?} and {told:?}");
        }
    }
}

#[test]
fn many_rows_are_averaged_and_the_picture_says_so() {
    let values = Array2::from_shape_fn((8192, 2), |(i, j)| if i % 2 == 0 { j as f64 } else { 0.5 });
    let svg = Heatmap::new(values.view()).colours(Colours::sequential().range(0.0, 1.0)).svg();
    let looked = look(&svg);
    assert_eq!(looked.images[0].height, 4096.0);
    assert!(looked.contents().iter().any(|text| text.contains("mean of 2 × 1")), "{:?}", looked.contents());
    let scale = Colours::sequential().range(0.0, 1.0).scale([].into_iter());
    let expected = Array2::from_shape_fn((4096, 2), |(_, j)| 0.25 + 0.5 * j as f64);
    assert_exact(&Pixels::of(&svg, 1.0), looked.images[0], 1, expected.view(), &scale);
}

#[test]
fn thumbnails_share_a_scale_or_have_their_own() {
    let [small, large] = [numbers(16, 16), numbers(16, 16) * 3.0];
    let sheet = || Sheet::new().thumbnail(small.view(), "small").thumbnail(large.view(), "large");
    let shared = Colours::sequential().scale(small.iter().chain(&large).copied());
    let svg = sheet().svg();
    let (looked, pixels) = (look(&svg), Pixels::of(&svg, 2.0));
    assert_exact(&pixels, looked.images[0], 2, small.view(), &shared);
    assert_exact(&pixels, looked.images[1], 2, large.view(), &shared);

    let svg = sheet().own_scales().svg();
    let (looked, pixels) = (look(&svg), Pixels::of(&svg, 1.0));
    assert_eq!(looked.images.len(), 2, "no bar could tell");
    for (image, values) in looked.images.iter().zip([&small, &large]) {
        let own = Colours::sequential().scale(values.iter().copied());
        assert_exact(&pixels, *image, 1, values.view(), &own);
    }
    looked.text("−0.1 … 0.882");
    looked.text("−0.3 … 2.65");
}

#[test]
fn panels_that_share_a_scale_are_comparable() {
    let scores = array![[4.0, -2.0], [1.0, 0.5]];
    let scaled = &scores / 2.0;
    let weights = array![[0.9, 0.1], [0.6, 0.4]];
    let panel = |values: &'static str| Heatmap::new(array_view(values, &scores, &scaled, &weights));
    let panels = |shared: bool| {
        let panels = Panels::new()
            .panel(panel("scores").colours(Colours::diverging()))
            .arrow("÷ √4")
            .panel(panel("scaled").colours(Colours::diverging()))
            .arrow("softmax")
            .panel(panel("weights"));
        look(&if shared { panels.shared_scale() } else { panels }.svg())
    };
    let colours = |shared| panels(shared).crisp.iter().map(|(_, colour)| colour.clone()).collect::<Vec<_>>();
    // The first cell of scaled is 2; none of scores is.
    let own = colours(false);
    assert_eq!(own[0], own[4], "each by its own scale");
    let together = colours(true);
    assert_ne!(together[0], together[4]);
    let wide = Colours::diverging().scale([4.0].into_iter()).colour(2.0);
    assert_eq!(together[4], format!("#{:02x}{:02x}{:02x}", wide[0], wide[1], wide[2]));
    assert_eq!((panels(false).images.len(), panels(true).images.len()), (3, 2), "bars");
}

fn array_view<'v>(
    name: &str,
    scores: &'v Array2<f64>,
    scaled: &'v Array2<f64>,
    weights: &'v Array2<f64>,
) -> ArrayView2<'v, f64> {
    match name {
        "scores" => scores.view(),
        "scaled" => scaled.view(),
        _ => weights.view(),
    }
}

#[test]
fn a_picture_reads_no_files() {
    let file = std::env::temp_dir().join(format!("qkv-picture-{}.png", std::process::id()));
    let red = Heatmap::new(array![[f64::NAN]].view()).svg();
    std::fs::write(&file, png(&red, 1.0).expect("a picture")).expect("a file");
    let svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"20\" height=\"20\">\
         <image width=\"20\" height=\"20\" preserveAspectRatio=\"none\" href=\"{}\"/></svg>",
        file.display()
    );
    let pixels = Pixels::of(&svg, 1.0);
    std::fs::remove_file(&file).expect("a file");
    assert!((0..20).all(|x| pixels.at(x, 10) == [255; 3]));
}

#[test]
fn what_cannot_be_rendered_is_an_error() {
    let svg = Heatmap::new(array![[1.0]].view()).svg();
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e9] {
        assert!(matches!(png(&svg, scale), Err(RenderError::Size { .. })), "{scale}");
    }
    assert!(matches!(png("<svg", 1.0), Err(RenderError::Svg(_))));
    assert!(png("", 1.0).is_err());
}

#[test]
fn letters_without_a_font_are_boxes() {
    // No font has letters of a private area; a box is seen.
    let (missing, nothing) = (drawn("\u{f0000}"), drawn("\u{a0}"));
    assert!(dark(&missing) > dark(&nothing) + 50, "{} and {}", dark(&missing), dark(&nothing));
    // Its neighbours stay as they are.
    assert_ne!(dark(&drawn("é\u{f0000}")), dark(&drawn("□\u{f0000}")));
}

#[test]
fn letters_that_the_embedded_font_lacks_come_from_the_machine() {
    const LETTER: char = 'ש';
    let mut fonts = resvg::usvg::fontdb::Database::new();
    fonts.load_system_fonts();
    let has = |data: &[u8], index| {
        skrifa::FontRef::from_index(data, index).is_ok_and(|font| font.charmap().map(LETTER).is_some())
    };
    let somewhere = fonts.faces().any(|face| fonts.with_face_data(face.id, has) == Some(true));
    let boxed = dark(&drawn("\u{f0000}")) == dark(&drawn(&LETTER.to_string()));
    assert_eq!(boxed, !somewhere);
}

/// A picture with one label.
fn drawn(label: &str) -> Pixels {
    let labels = [label.to_string()];
    Pixels::of(&Heatmap::new(array![[1.0]].view()).query_labels(&labels).svg(), 4.0)
}

/// Pixels of ink, among others.
fn dark(pixels: &Pixels) -> usize {
    let all = (0..pixels.height).flat_map(|y| (0..pixels.width).map(move |x| (x, y)));
    all.filter(|(x, y)| pixels.at(*x, *y)[0] < 128).count()
}
