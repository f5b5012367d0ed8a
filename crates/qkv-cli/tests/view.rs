//! `qkv view`: who is let in, what is answered, and the page in one file.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use common::Place;
use serde_json::{Value, json};

/// The running command; it ends with the test.
struct View {
    child: Child,
    port: u16,
    token: String,
}

impl View {
    fn start() -> Self {
        let mut child = common::command()
            .args(["view", "--no-open"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.split_whitespace().find(|word| word.starts_with("http://")).expect("an address");
        let (host, token) = address.split_once("/?token=").expect("a token");
        let port = host.rsplit_once(':').expect("a port").1.parse().expect("a number");
        Self { child, port, token: token.to_string() }
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Status, headers in small letters, and body.
    fn ask(&self, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        let mut request =
            format!("{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        // A server that refuses early may not read all of it.
        let _ = stream.write_all(format!("{request}\r\n{body}").as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
        (
            status.unwrap_or_else(|| panic!("no status in {answer:?}")),
            head.to_ascii_lowercase(),
            body.to_string(),
        )
    }

    /// Shows the token, and returns the cookie.
    fn enter(&self) -> String {
        let (status, head, _) =
            self.ask(&format!("GET /?token={}", self.token), &[("Host", &self.host())], "");
        assert_eq!(status, 303, "{head}");
        assert!(
            head.contains("location: /\r\n") && head.contains("httponly") && head.contains("samesite=strict")
        );
        let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
        cookie.split(';').next().expect("a pair").to_string()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn only_who_shows_the_token_once_is_let_in() {
    let view = View::start();
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
fn a_lesson_is_computed_by_the_engine_and_a_wrong_one_refused() {
    let view = View::start();
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
