//! What pictures say: labels, ticks, legends and titles, whatever the matrix and whatever its labels.

use ndarray::{Array2, array};
use qkv_view::picture::{Axis, Colours, Heatmap, Panels, Sheet, png};
use qkv_view::scene::token;

use looked_at::{Looked, Pixels, boxes, look};

mod looked_at;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}

/// Weights that fall off from the diagonal.
fn head(rows: usize, columns: usize) -> Array2<f64> {
    Array2::from_shape_fn((rows, columns), |(i, j)| 1.0 / (1.0 + i.abs_diff(j) as f64))
}

/// Every text is on the page, and no two that stand upright touch.
fn assert_readable(svg: &str) {
    let (width, height) = look(svg).size;
    let boxes = boxes(svg);
    for (text, [left, top, right, bottom], _) in &boxes {
        let inside = *left >= 0.0 && *top >= 0.0 && *right <= width as f32 && *bottom <= height as f32;
        assert!(inside, "{text:?} is cut: {left} {top} {right} {bottom} of {width} {height}");
    }
    let upright: Vec<_> = boxes.iter().filter(|(_, _, turned)| !turned).collect();
    for (index, (one, a, _)) in upright.iter().enumerate() {
        for (other, b, _) in &upright[index + 1..] {
            // Boxes are as high as the font, letters are lower.
            let across = a[0] < b[2] && b[0] < a[2];
            let down = a[1] + 3.0 < b[3] && b[1] + 3.0 < a[3];
            assert!(!(across && down), "{one:?} {a:?} touches {other:?} {b:?}");
        }
    }
}

const HOSTILE: [&str; 16] = [
    "</script><b>",
    "</text><svg onload='x'>",
    "a\nb",
    "",
    " ",
    "שלום",
    "مرحبا (عالم)",
    "👩\u{200d}👩\u{200d}👧",
    "the",
    "the",
    "\u{202e}evil",
    "\u{2067}isolated",
    "\u{0}\u{7}\u{1b}[31m",
    "&amp;&#0;]]>",
    "a  b",
    "猫\u{fffe}は\u{61c}座\u{2029}",
];

#[test]
fn labels_can_be_anything() {
    let labels = words(&HOSTILE);
    let values = head(16, 16);
    let hostile = HOSTILE.join(" ");
    let svg = Heatmap::new(values.view())
        .title(&hostile)
        .subtitle(&hostile)
        .quantity(&hostile)
        .caption(&hostile)
        .query_labels(&labels)
        .key_labels(&labels)
        .svg();
    let looked = look(&svg);
    for label in &labels {
        // Once beside a row, once above a column, and as often as it is there.
        let times = labels.iter().filter(|other| *other == label).count();
        let shown = token(label);
        assert_eq!(looked.contents().iter().filter(|text| **text == shown).count(), 2 * times, "{shown:?}");
    }
    // Nothing that turns the direction of its neighbours, or that XML cannot hold.
    let banned = |letter: char| {
        (letter.is_control() && letter != '\n')
            || ('\u{202a}'..='\u{202e}').contains(&letter)
            || ('\u{2066}'..='\u{2069}').contains(&letter)
            || ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{fffe}'].contains(&letter)
    };
    assert!(!svg.contains(banned), "{:?}", svg.chars().find(|letter| banned(*letter)));
    assert!(looked.title.starts_with("</script><b> </text>"), "{}", looked.title);
    assert_readable(&svg);
    assert!(boxes(&svg).iter().any(|(text, _, _)| text == "a  b"), "spaces are drawn");
    png(&svg, 1.0).expect("a picture");
    let thumbnail = Sheet::new().thumbnail(values.view(), hostile.as_str()).title(&hostile).svg();
    look(&thumbnail);
    let panels = Panels::new().panel(Heatmap::new(values.view())).arrow(&hostile);
    look(&panels.panel(Heatmap::new(values.view())).svg());
}

#[test]
fn labels_stand_beside_their_cells() {
    let labels = words(&["the", "cat", "sat"]);
    let values = head(3, 3);
    let svg = Heatmap::new(values.view()).query_labels(&labels).svg();
    let looked = look(&svg);
    for (row, label) in labels.iter().enumerate() {
        let cell = looked.crisp[3 * row].0;
        let text = looked.text(label);
        assert!((text.y - (cell.y + cell.height / 2.0)).abs() <= 1.0 && text.x < cell.x);
    }
    // The columns have numbers.
    let above = looked.text("2");
    let cell = looked.crisp[2].0;
    assert!((above.x - (cell.x + cell.width / 2.0)).abs() <= 1.0 && above.y < cell.y);
}

#[test]
fn labels_of_a_part_are_those_of_its_indices() {
    let labels: Vec<String> = (0..10).map(|index| format!("w{index}")).collect();
    let values = head(2, 3);
    let svg = Heatmap::new(values.view())
        .queries(Axis::new("query", 4..6).labels(&labels))
        .keys(Axis::new("key", 7..10).labels(&labels[..8]))
        .svg();
    let shown = look(&svg);
    let contents = shown.contents();
    // A label that is not there leaves its index.
    for expected in ["w4", "w5", "w7", "8", "9"] {
        assert!(contents.contains(&expected), "{expected} in {contents:?}");
    }
    assert!(!contents.contains(&"w0") && !contents.contains(&"w8"), "{contents:?}");
}

#[test]
fn a_pooled_matrix_has_ticks_at_the_indices_that_it_stands_for() {
    let values = head(1024, 512);
    let labels: Vec<String> = (0..100_000).map(|index| format!("token{index}")).collect();
    let svg = Heatmap::new(values.view())
        .queries(Axis::new("query", 0..100_000).labels(&labels))
        .keys(Axis::new("key", 40_000..50_000).labels(&labels))
        .svg();
    let looked = look(&svg);
    let cells = looked.images[0];
    // Two pixels a column would be too many rows: each bin is whole pixels.
    assert_eq!((cells.width, cells.height), (512.0, 1024.0));
    let row = looked.text("30000");
    assert!((row.y - (cells.y + 30_000.5 / 100_000.0 * 1024.0)).abs() < 0.02, "{}", row.y);
    let column = looked.text("44000");
    assert!((column.x - (cells.x + 4000.5 / 10_000.0 * 512.0)).abs() < 0.02, "{}", column.x);
    let contents = looked.contents();
    assert!(contents.contains(&"query (97.7 per cell)") && contents.contains(&"key (19.5 per cell)"));
    assert!(!contents.iter().any(|text| text.contains("token")), "{contents:?}");
    assert_readable(&svg);
}

#[test]
fn a_label_never_stands_for_many_indices() {
    let values = head(20, 20);
    let labels: Vec<String> = (0..2000).map(|index| format!("token{index}")).collect();
    let map = |indices| Heatmap::new(values.view()).keys(Axis::new("key", 0..indices).labels(&labels));
    assert!(map(20).svg().contains("token7"));
    assert!(!map(2000).svg().contains("token"));
    assert!(!map(21).svg().contains("token"));
}

#[test]
fn a_legend_names_what_is_no_finite_number_and_occurs() {
    let specials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let names = ["NaN", "+∞", "−∞"];
    for chosen in 0..8 {
        let mut values = head(20, 20);
        for (index, special) in specials.iter().enumerate().filter(|(index, _)| chosen >> index & 1 == 1) {
            values[[3, 5 + index]] = *special;
        }
        let svg = Heatmap::new(values.view()).svg();
        let sheet = Sheet::new().thumbnail(values.view(), "").svg();
        for (index, name) in names.iter().enumerate() {
            for looked in [look(&svg), look(&sheet)] {
                assert_eq!(looked.contents().contains(name), chosen >> index & 1 == 1, "{name}, {chosen}");
            }
        }
        assert_readable(&svg);
    }
}

fn bar_ticks(looked: &Looked) -> Vec<&str> {
    let bar = looked.images.last().expect("a bar");
    let beside = looked.texts.iter().filter(|text| text.x > bar.x + bar.width && !text.turned);
    beside.map(|text| text.content.as_str()).collect()
}

#[test]
fn a_bar_says_where_it_ends_and_how_it_goes() {
    let values = Array2::from_shape_fn((40, 40), |(i, j)| (i * 40 + j) as f64 / 1599.0 * 0.873);
    let ticks = |colours: Colours| {
        let svg = Heatmap::new(values.view()).quantity("weight").colours(colours).svg();
        assert_readable(&svg);
        let looked = look(&svg);
        let ticks: Vec<String> = bar_ticks(&looked).into_iter().map(str::to_string).collect();
        (ticks, looked.contents().contains(&"weight (square-root scale)"))
    };
    let (plain, square_root) = ticks(Colours::sequential());
    assert_eq!((plain[0].as_str(), plain.last().unwrap().as_str(), square_root), ("0.873", "0.0", false));
    let (cut, _) = ticks(Colours::sequential().range(0.1, 0.5));
    assert_eq!((cut[0].as_str(), cut.last().unwrap().as_str()), ("≥ 0.50", "≤ 0.10"));
    let (spread, square_root) = ticks(Colours::sequential().square_root().range(0.0, 0.0123));
    assert_eq!((spread[0].as_str(), spread.last().unwrap().as_str(), square_root), ("≥ 0.0123", "0", true));
    assert_eq!(ticks(Colours::diverging()).0.last().unwrap(), "−0.873");
}

#[test]
fn numbers_with_names_have_swatches_instead_of_a_bar() {
    let colours = Colours::sequential().range(0.0, 1.0).two("masked", "may attend");
    let svg = |values: &Array2<f64>| Heatmap::new(values.view()).quantity("mask").colours(colours).svg();
    let two = svg(&array![[1.0, 0.0], [1.0, 1.0]]);
    let looked = look(&two);
    assert_eq!(looked.images.len(), 0);
    assert_eq!(
        looked.contents().iter().filter(|text| text.contains("ma") || text.contains("1.0")).count(),
        2
    );
    assert_readable(&two);
    let more = svg(&array![[1.0, 0.0], [0.5, 1.0]]);
    assert!(look(&more).images.len() == 1 && look(&more).contents().contains(&"mask"));
    let colours = Colours::sequential().below_all("masked");
    let hidden = Heatmap::new(array![[f64::NEG_INFINITY, 0.5]].view()).colours(colours).svg();
    assert!(hidden.contains(">masked<") && !hidden.contains("∞"), "{hidden}");
}

#[test]
fn any_matrix_can_be_drawn() {
    let numbers: [(&str, Array2<f64>); 9] = [
        ("one", array![[0.3]]),
        ("constant", Array2::from_elem((7, 7), 0.2)),
        ("zero", Array2::zeros((40, 40))),
        ("negative", array![[-3.0, -2.0], [-1.5, -9.0]]),
        ("huge", array![[f64::MAX, f64::MIN], [0.0, 1.0]]),
        ("tiny", array![[f64::from_bits(1), 0.0]]),
        ("a row", head(1, 700)),
        ("a column", head(700, 1)),
        ("wide", head(5, 300)),
    ];
    for (name, values) in &numbers {
        for colours in [Colours::sequential(), Colours::sequential().square_root(), Colours::diverging()] {
            let svg = Heatmap::new(values.view()).title(*name).quantity("number").colours(colours).svg();
            assert!(bar_ticks(&look(&svg)).len() >= 2, "{name}: {:?}", look(&svg).contents());
            assert_readable(&svg);
            png(&svg, 1.0).expect(name);
        }
    }
    for values in [Array2::from_elem((3, 3), f64::NAN), Array2::from_elem((30, 30), f64::NEG_INFINITY)] {
        let svg = Heatmap::new(values.view()).quantity("number").svg();
        // No bar, of which nothing could be read.
        assert!(!look(&svg).contents().contains(&"number"));
        assert_readable(&svg);
    }
    for (rows, columns) in [(0, 5), (5, 0), (0, 0)] {
        let labels = words(&["a", "b", "c", "d", "e"]);
        let values = Array2::zeros((rows, columns));
        let svg = Heatmap::new(values.view()).query_labels(&labels).key_labels(&labels).svg();
        assert!(look(&svg).contents().contains(&format!("{rows} × {columns}: no cells").as_str()));
        let sheet = Sheet::new().thumbnail(values.view(), "").thumbnail(head(2, 2).view(), "").svg();
        assert_readable(&svg);
        assert_readable(&sheet);
    }
    assert_readable(&Sheet::new().svg());
    assert_readable(&Panels::new().svg());
}

#[test]
fn labels_and_ticks_do_not_touch_whatever_the_size() {
    for (rows, columns) in
        [(1, 1), (2, 9), (16, 16), (17, 17), (20, 50), (33, 5), (60, 60), (96, 96), (97, 319)]
    {
        let labels: Vec<String> =
            (0..400).map(|index| "wordy".repeat(1 + index % 4) + &index.to_string()).collect();
        let values = head(rows, columns);
        for start in [0, 100_000_000] {
            let axes = |name, count| Axis::new(name, start..start + count);
            let plain = Heatmap::new(values.view()).queries(axes("query", rows)).keys(axes("key", columns));
            assert_readable(&plain.svg());
        }
        let svg = Heatmap::new(values.view())
            .title("A title that is longer than the narrow pictures are wide")
            .caption("A caption that is longer than the narrow pictures are wide")
            .quantity("weight")
            .query_labels(&labels)
            .key_labels(&labels)
            .svg();
        assert_readable(&svg);
        assert_eq!(look(&svg).contents().contains(&labels[0].as_str()), rows.min(columns) <= 96);
    }
}

#[test]
fn the_longest_labels_are_not_cut_by_the_edge() {
    let labels = vec!["W".repeat(40); 5];
    let values = head(5, 5);
    let map = || Heatmap::new(values.view()).query_labels(&labels).key_labels(&labels);
    let svg = map().svg();
    assert_readable(&svg);
    look(&svg).text(&token(&labels[0]));
    assert_readable(&Panels::new().panel(map()).panel(map()).shared_scale().svg());
}

#[test]
fn numbers_stand_in_cells_where_they_fit() {
    let shown = |values: Array2<f64>| {
        let svg = Heatmap::new(values.view()).svg();
        look(&svg).texts.iter().map(|text| text.content.clone()).collect::<Vec<_>>()
    };
    let texts = shown(array![[0.256, -1.5], [-0.001, f64::NEG_INFINITY]]);
    for expected in ["0.26", "−1.50", "0.00", "−∞"] {
        assert!(texts.contains(&expected.to_string()), "{expected} in {texts:?}");
    }
    assert!(shown(array![[1e-7, 2.5e-7]]).contains(&"2.5e−7".to_string()));
    assert!(shown(Array2::from_elem((16, 16), 0.31)).contains(&"0.31".to_string()));
    // The bar's end is all that has it.
    let larger = shown(Array2::from_elem((17, 16), 0.31));
    assert_eq!(larger.iter().filter(|text| *text == "0.31").count(), 1, "{larger:?}");
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let values = head(40, 40);
    let labels: Vec<String> = (0..40).map(|index| format!("w{index}")).collect();
    let map = || Heatmap::new(values.view()).title("weights").key_labels(&labels).svg();
    let elsewhere = std::thread::scope(|scope| scope.spawn(map).join().expect("a picture"));
    assert_eq!(map(), elsewhere);
    assert_eq!(png(&map(), 1.0).expect("a picture"), png(&elsewhere, 1.0).expect("a picture"));
}

#[test]
fn three_hundred_thumbnails_fit_a_page() {
    let heads: Vec<Array2<f64>> = (0..300).map(|index| head(24, 24) / (1.0 + index as f64)).collect();
    let mut sheet = Sheet::new().title("all heads").quantity("weight").columns(20);
    for (index, head) in heads.iter().enumerate() {
        sheet = sheet.thumbnail(head.view(), format!("head {index}"));
    }
    for svg in [sheet.clone().svg(), sheet.own_scales().svg()] {
        let looked = look(&svg);
        let thumbnails: Vec<_> = looked.images.iter().filter(|image| image.width > 20.0).collect();
        assert_eq!(thumbnails.len(), 300);
        assert_eq!(thumbnails[0].y, thumbnails[19].y);
        assert!(thumbnails[20].y > thumbnails[19].y && thumbnails[20].x == thumbnails[0].x);
        for (index, image) in thumbnails.iter().enumerate() {
            let caption = looked.text(&format!("head {index}"));
            assert!(caption.x == image.x && caption.y < image.y && caption.y > image.y - 20.0);
        }
        assert_readable(&svg);
        assert!(svg.len() < 2_000_000);
        Pixels::of(&svg, 1.0);
    }
}

#[test]
fn panels_go_on_in_the_next_line() {
    let values = head(5, 5);
    let panel = || Heatmap::new(values.view()).title("panel").caption("variance 0.1");
    let panels = |width| {
        let row = Panels::new().title("steps").width(width).panel(panel()).arrow("÷ √d").panel(panel());
        row.arrow("softmax").panel(panel()).svg()
    };
    let heights = [2000, 1000, 1].map(|width| {
        let svg = panels(width);
        assert_readable(&svg);
        let looked = look(&svg);
        assert_eq!(looked.contents().iter().filter(|text| **text == "variance 0.1").count(), 3);
        looked.text("÷ √d");
        looked.text("softmax");
        assert!(width == 1 || looked.size.0 <= width as f64 + 32.0, "{:?}", looked.size);
        looked.size.1
    });
    assert!(heights[0] < heights[1] && heights[1] < heights[2], "{heights:?}");
}

#[test]
fn those_who_do_not_see_it_are_told() {
    let values = array![[0.25, f64::NEG_INFINITY], [f64::NAN, 1.0]];
    let looked = look(&Heatmap::new(values.view()).title("weights").svg());
    assert_eq!(looked.title, "weights");
    assert_eq!(looked.description, "Rows: query 0 to 1. Columns: key 0 to 1. Values from 0.2500 to 1.0000.");
}
