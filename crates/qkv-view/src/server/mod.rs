//! The local server of the page.
//!
//! It listens on 127.0.0.1 alone. Whoever opens it shows a token, once: it stands in the URL that is printed and is
//! then exchanged for a cookie; for the next browser there is another token, which only [`Server::on_entry`] is told.
//! Requests that name another host are refused, so that no other site can reach it through a name of its own; answers may
//! not be framed, guessed at or kept. What one request can ask for is bounded.

mod explore;

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};

use crate::explorer::Explorer;
use crate::lesson::Lesson;
use crate::page::{self, Asset};

/// What a page may load and do.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Of a request's body.
const MOST_BYTES: usize = 1 << 20;
/// Requests that are computed at a time; others wait.
const AT_A_TIME: usize = 2;
const COOKIE: &str = "qkv";
/// Whom the token did not let in: a page of plain words, which needs no style of its own.
const TURNED_AWAY: &str = "\
<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<meta name=\"color-scheme\" content=\"light dark\">
<title>This address has been used</title>
<h1>This address has been used</h1>
<p>Each address of this page opens once, in one browser, so that nobody else on this machine can look at your data. The page goes on
working in the browser that opened it.
<p>To open it here, take a fresh address: the terminal in which <code>qkv view</code> runs shows one below the first. From Python,
<code>page.open()</code> gives one.
</html>
";

/// A page that is about to be served.
pub struct Server {
    listener: TcpListener,
    port: u16,
    token: String,
    data: Value,
    explorer: Option<Arc<Explorer>>,
    on_entry: Option<OnEntry>,
}

/// What is told the next URL.
type OnEntry = Box<dyn Fn(&str) + Send + Sync>;

impl Server {
    /// On a port of 127.0.0.1; 0 is any that is free. The page has a lesson to start from, and what there is to explore.
    ///
    /// # Errors
    /// If the port cannot be had, or the system has no random numbers.
    pub fn new(port: u16, lesson: &Lesson, explorer: Option<Arc<Explorer>>) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let live = explorer.as_ref().map(|_| json!({ "live": true }));
        let data = json!({ "live": true, "lesson": lesson, "explorer": live });
        Ok(Self {
            port: listener.local_addr()?.port(),
            listener,
            token: secret()?,
            data,
            explorer,
            on_entry: None,
        })
    }

    /// What the reader's browser opens, once.
    pub fn url(&self) -> String {
        url(self.port, &self.token)
    }

    /// Each time that a browser has been let in, says which URL lets in another one, once. Without this none does.
    pub fn on_entry(mut self, tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.on_entry = Some(Box::new(tell));
        self
    }

    /// Answers until the process ends.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn run(self) -> io::Result<()> {
        self.run_until(std::future::pending())
    }

    /// Answers on a thread of its own.
    pub fn start(self) -> Running {
        let (stop, stopped) = oneshot::channel::<()>();
        let explorer = self.explorer.clone();
        // Where the system refuses, the page's reader is the one who sees it.
        thread::spawn(move || self.run_until(async { drop(stopped.await) }).ok());
        Running { _stop: stop, explorer }
    }

    fn run_until(self, stopped: impl Future<Output = ()>) -> io::Result<()> {
        let hosts = [format!("127.0.0.1:{}", self.port), format!("localhost:{}", self.port)];
        let site = Arc::new(Site {
            hosts,
            port: self.port,
            on_entry: self.on_entry,
            token: Mutex::new(Some(self.token)),
            // Cookies are kept by host, whatever the port: two servers must not take each other's for their own.
            cookie_name: format!("{COOKIE}-{}", self.port),
            cookie: secret()?,
            data: self.data,
            explorer: self.explorer,
            computing: Semaphore::new(AT_A_TIME),
        });
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            tokio::select! {
                served = axum::serve(listener, router(site)).into_future() => served,
                () = stopped => Ok(()),
            }
        })
    }
}

/// A server at work; it ends when this is dropped.
pub struct Running {
    _stop: oneshot::Sender<()>,
    explorer: Option<Arc<Explorer>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(explorer) = &self.explorer {
            explorer.close();
        }
    }
}

/// What all requests share.
struct Site {
    hosts: [String; 2],
    port: u16,
    on_entry: Option<OnEntry>,
    /// Until it is used.
    token: Mutex<Option<String>>,
    cookie_name: String,
    cookie: String,
    data: Value,
    explorer: Option<Arc<Explorer>>,
    computing: Semaphore,
}

fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/api/lesson", post(lesson))
        .merge(explore::routes())
        .route("/{*name}", get(asset))
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .layer(middleware::from_fn_with_state(site.clone(), guard))
        .with_state(site)
}

fn url(port: u16, token: &str) -> String {
    format!("http://127.0.0.1:{port}/?token={token}")
}

/// 256 random bits in hexadecimal digits.
fn secret() -> io::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
}

/// Lets in who came by this server's own address and has shown the token, and says with each answer what may be done with it.
async fn guard(
    State(site): State<Arc<Site>>,
    token: Result<Query<Token>, QueryRejection>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let mut answer = if !site.is_own_host(headers) {
        refusal(StatusCode::FORBIDDEN, "this page is served to 127.0.0.1 alone")
    } else if site.knows(headers) {
        next.run(request).await
    } else if token.ok().and_then(|Query(shown)| shown.token).is_some_and(|token| site.takes(&token)) {
        site.welcome()
    } else if request.uri().path().starts_with("/api/") {
        refusal(StatusCode::FORBIDDEN, "this address has been used: take a fresh one where it came from")
    } else {
        let html = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
        (StatusCode::FORBIDDEN, html, TURNED_AWAY).into_response()
    };
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

impl Site {
    fn is_own_host(&self, headers: &HeaderMap) -> bool {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
        let own = |host: &str| self.hosts.iter().any(|own| own == host);
        host.is_some_and(own) && origin.is_none_or(|origin| origin.strip_prefix("http://").is_some_and(own))
    }

    /// Whether a request has the cookie.
    fn knows(&self, headers: &HeaderMap) -> bool {
        let texts = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = texts.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, value)| name == self.cookie_name && same(value, &self.cookie))
    }

    /// Takes the token, once, and makes the next one if there is somebody to tell.
    fn takes(&self, shown: &str) -> bool {
        let (taken, next) = {
            let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = token.take_if(|token| same(token, shown)).is_some();
            // Without random numbers no other browser is let in.
            *token = match &self.on_entry {
                Some(_) if taken => secret().ok(),
                _ => token.take(),
            };
            (taken, token.clone().filter(|_| taken))
        };
        if let (Some(tell), Some(next)) = (&self.on_entry, next) {
            tell(&url(self.port, &next));
        }
        taken
    }

    /// The result of work that takes a processor, when it is its turn; or why there is none.
    async fn compute<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> Result<R, Response> {
        let Ok(_permit) = self.computing.acquire().await else {
            return Err(refusal(StatusCode::SERVICE_UNAVAILABLE, "the server is closing"));
        };
        let failed = |_| refusal(StatusCode::INTERNAL_SERVER_ERROR, "this could not be computed");
        tokio::task::spawn_blocking(work).await.map_err(failed)
    }

    /// Sends a browser to the page with the cookie, so that the token stays in no history.
    fn welcome(&self) -> Response {
        let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie_name, self.cookie);
        (StatusCode::SEE_OTHER, [(header::LOCATION, "/".to_string()), (header::SET_COOKIE, cookie)])
            .into_response()
    }
}

/// Equality that takes as long wherever texts differ.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn refusal(status: StatusCode, words: &str) -> Response {
    (status, Json(json!({ "error": words }))).into_response()
}

async fn index(State(site): State<Arc<Site>>) -> Response {
    let page = page::index(&site.data);
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response()
}

async fn asset(Path(name): Path<String>) -> Response {
    match Asset::named(&name) {
        Some(asset) => ([(header::CONTENT_TYPE, asset.media_type())], asset.text).into_response(),
        None => refusal(StatusCode::NOT_FOUND, "there is no such file"),
    }
}

async fn lesson(State(site): State<Arc<Site>>, Json(lesson): Json<Lesson>) -> Response {
    match site.compute(move || lesson.steps()).await {
        Ok(Ok(steps)) => Json(steps).into_response(),
        Ok(Err(error)) => refusal(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string()),
        Err(response) => response,
    }
}
