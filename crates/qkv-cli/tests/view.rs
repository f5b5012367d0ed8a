//! `qkv view`: who is let in, what is answered, and the page in one file.

mod common;

use common::Place;
use common::served::View;
use serde_json::{Value, json};

#[test]
fn only_who_shows_the_token_once_is_let_in() {
    let view = View::start(&[]);
    let host = view.host();
    let status = |line: &str, headers: &[(&str, &str)]| view.ask(line, headers, "").0;
    assert_eq!(status("GET /", &[("Host", &host)]), 403);
    assert_eq!(status("GET /?token=0", &[("Host", &host)]), 403);
    assert_eq!(status("GET /main.js", &[("Host", &host)]), 403);
    let cookie = view.enter();
    assert_eq!(
        status(&format!("GET /?token={}", view.token), &[("Host", &host)]),
        403,
        "the token opens twice"
    );
    let (code, head, body) = view.ask("GET /", &[("Host", &host), ("Cookie", &cookie)], "");
    assert_eq!(code, 200);
    assert!(
        head.contains("content-security-policy: default-src 'none'")
            && head.contains("cache-control: no-store")
    );
    assert!(body.contains("\"live\":true") && body.contains("0.8822"), "{body}");
    assert_eq!(status("GET /main.js", &[("Host", &host), ("Cookie", &cookie)]), 200);
    assert_eq!(status("GET /../Cargo.toml", &[("Host", &host), ("Cookie", &cookie)]), 404);
    assert_eq!(status("GET /Cargo.toml", &[("Host", &host), ("Cookie", &cookie)]), 404);
    // Under a name of another site's, or from its pages, not even with the cookie.
    for (name, value) in [("Host", "evil.example"), ("Host", "127.0.0.1")] {
        assert_eq!(status("GET /", &[(name, value), ("Cookie", &cookie)]), 403, "{name}: {value}");
    }
    let foreign = [("Host", host.as_str()), ("Cookie", &cookie), ("Origin", "http://evil.example")];
    assert_eq!(status("POST /api/lesson", &foreign), 403);
    assert_eq!(status("GET /", &[("Host", &host), ("Cookie", &format!("x{cookie}"))]), 403);
}

#[test]
fn a_used_address_says_where_a_fresh_one_is_and_that_opens_once_too() {
    let mut view = View::start(&[]);
    let host = view.host();
    let cookie = view.enter();
    let used = format!("GET /?token={}", view.token);
    let (code, head, body) = view.ask(&used, &[("Host", &host)], "");
    assert_eq!(code, 403);
    assert!(head.contains("content-type: text/html") && head.contains("content-security-policy: "), "{head}");
    assert!(
        body.contains("has been used") && body.contains("fresh address") && !body.contains("token="),
        "{body}"
    );
    // What a page asks for is refused as it is answered.
    let (code, head, _) = view.ask("GET /api/input", &[("Host", &host)], "");
    assert!(code == 403 && head.contains("content-type: application/json"), "{head}");
    for _ in 0..3 {
        let fresh = view.next_token();
        assert_ne!(fresh, view.token);
        view.token = fresh;
        // Either browser has the page.
        assert_eq!(view.enter(), cookie);
        assert_eq!(view.ask(&format!("GET /?token={}", view.token), &[("Host", &host)], "").0, 403);
    }
    assert_eq!(view.ask(&used, &[("Host", &host)], "").0, 403);
    assert_eq!(view.ask("GET /", &[("Host", &host), ("Cookie", &cookie)], "").0, 200);
}

#[test]
fn a_lesson_is_computed_by_the_engine_and_a_wrong_one_refused() {
    let view = View::start(&[]);
    let (host, cookie) = (view.host(), view.enter());
    let ask = |body: &str| {
        let headers = [("Host", host.as_str()), ("Cookie", &cookie), ("Content-Type", "application/json")];
        view.ask("POST /api/lesson", &headers, body)
    };
    let lesson = json!({ "words": ["a", "b"], "x": [[1, 2], [3, 4]], "w_q": [[1], [0]], "w_k": [[0], [1]],
        "w_v": [[1, 0, 1], [0, 1, 1]], "scale": null, "causal": true });
    let (status, _, body) = ask(&lesson.to_string());
    assert_eq!(status, 200, "{body}");
    let steps: Value = serde_json::from_str(&body).unwrap();
    let step =
        |name: &str| steps["steps"].as_array().unwrap().iter().find(|step| step["name"] == name).unwrap();
    assert_eq!(step("scores")["values"], json!([[2.0, 4.0], [6.0, 12.0]]));
    assert_eq!(step("masked")["values"][0], json!([2.0, "-Infinity"]));
    assert_eq!(step("output")["values"][0], json!([1.0, 2.0, 3.0]));
    let mut ragged = lesson.clone();
    ragged["x"] = json!([[1, 2], [3]]);
    let (status, _, body) = ask(&ragged.to_string());
    assert!(status == 422 && body.contains("x: want"), "{status} {body}");
    let mut large = lesson.clone();
    large["w_q"] = json!(vec![vec![1.0; 200]; 2]);
    assert_eq!(ask(&large.to_string()).0, 422);
    for wrong in ["", "{", "[]", "{\"x\": 1}", &"[".repeat(100_000)] {
        assert!(matches!(ask(wrong).0, 400 | 422), "{wrong:.20}");
    }
    assert_eq!(ask(&format!("{{\"x\": [[{}]]}}", "1,".repeat(1 << 20))).0, 413);
    // It still answers.
    assert_eq!(ask(&lesson.to_string()).0, 200);
}

#[test]
fn the_page_can_be_one_file() {
    let place = Place::new();
    let path = place.path("lesson.html");
    assert!(qkv!("view", "--export", path).succeeded().out.contains("lesson.html"));
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(
        page.contains("\"live\":false")
            && page.contains("0.8822")
            && page.contains("function attentionSteps")
    );
    assert!(!page.contains("src=\"main.js\"") && !page.contains("stylesheet"));
    qkv!("view", "--export", place.path("lesson.txt")).refused(&["lesson.txt", ".html"]);
    qkv!("view", "--export", place.path("none/lesson.html")).refused(&["none"]);
    assert_eq!(place.files(), ["lesson.html"]);
}

#[test]
fn a_port_that_is_taken_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    qkv!("view", "--no-open", "--port", port).refused(&["--port", "cannot serve on 127.0.0.1"]);
}
