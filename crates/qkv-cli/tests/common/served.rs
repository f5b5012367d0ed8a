//! The page's server, at work.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};

/// The running command; it ends with the test.
pub struct View {
    child: Child,
    said: BufReader<ChildStdout>,
    port: u16,
    pub token: String,
}

impl View {
    /// `qkv view` with these words.
    pub fn start(words: &[&OsStr]) -> Self {
        let mut child = super::command()
            .args(["view", "--no-open"])
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        let (port, token) = address(&mut said);
        Self { child, said, port, token }
    }

    /// The token of the next address that is printed.
    pub fn next_token(&mut self) -> String {
        let (port, token) = address(&mut self.said);
        assert_eq!(port, self.port);
        token
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Status, headers in small letters, and body.
    pub fn ask(&self, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        let mut request =
            format!("{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        // A server that refuses early may not read all of it.
        let _ = stream.write_all(format!("{request}\r\n{body}").as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        // Pictures are no text; of them the beginning is enough.
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
        (
            status.unwrap_or_else(|| panic!("no status in {answer:?}")),
            head.to_ascii_lowercase(),
            body.to_string(),
        )
    }

    /// Shows the token, and returns the cookie.
    pub fn enter(&self) -> String {
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

/// Port and token of the address in the next line.
fn address(said: &mut impl BufRead) -> (u16, String) {
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    let address = line.split_whitespace().find(|word| word.starts_with("http://")).expect("an address");
    let (host, token) = address.split_once("/?token=").expect("a token");
    let port = host.rsplit_once(':').expect("a port").1.parse().expect("a number");
    (port, token.to_string())
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
