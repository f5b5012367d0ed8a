//! What a page asks of the explorer, as URLs: `live-source.js` of the page lists them.
//!
//! A question whose answer takes a pass in the background is asked again and again until it is there, or until whoever sent
//! it is gone; then the work stops by itself.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use qkv::Of;
use serde::Deserialize;
use serde_json::Value;

use super::{Site, refusal};
use crate::explorer::{self, Choice, Explorer, OF, POOLS, Place, Refusal, Shown};

/// How long a map may take to be whole before the page is told how far it is.
const PATIENCE: Duration = Duration::from_millis(700);
const ASK_AGAIN: Duration = Duration::from_millis(25);
/// Entries of a list, if no number is asked for.
const LISTED: usize = 20;

/// All that a question may say; each needs some of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Question {
    layer: Option<usize>,
    head: Option<usize>,
    batch: usize,
    from: usize,
    of: Option<String>,
    pool: Option<String>,
    level: Option<usize>,
    x: Option<usize>,
    y: Option<usize>,
    low: Option<f64>,
    high: Option<f64>,
    queries: Option<String>,
    keys: Option<String>,
    query: Option<usize>,
    key: Option<usize>,
    count: Option<usize>,
}

/// What a question is answered with.
enum Answer {
    Json(Value),
    Png(Arc<Vec<u8>>),
    /// It is being worked on. What is known, if that is something, is sent after a while.
    Later(Option<Value>),
}

impl From<Option<Value>> for Answer {
    fn from(answer: Option<Value>) -> Self {
        answer.map_or(Self::Later(None), Self::Json)
    }
}

type Asked = Result<Query<Question>, QueryRejection>;

/// The part of the server that explores.
pub(super) fn routes() -> Router<Arc<Site>> {
    macro_rules! ask {
        ($answer:expr) => {
            get(|site: State<Arc<Site>>, asked: Asked| answer(site, asked, $answer))
        };
    }
    Router::new()
        .route("/api/input", ask!(|explorer, _| Ok(Answer::Json(explorer.input().json()))))
        .route(
            "/api/tokens",
            ask!(|explorer, asked| Ok(Answer::Json(explorer.tokens(asked.layer, asked.batch)?))),
        )
        .route(
            "/api/heads",
            ask!(|explorer, asked| Ok(Answer::Json(explorer.heads(asked.batch, asked.from)?))),
        )
        .route("/api/thumbnail", ask!(thumbnail))
        .route("/api/map", ask!(map))
        .route("/api/tile", ask!(tile))
        .route("/api/cells", ask!(cells))
        .route("/api/query", ask!(query))
        .route("/api/key", ask!(key))
}

fn thumbnail(explorer: &Explorer, asked: &Question) -> Result<Answer, Refusal> {
    let picture = explorer.thumbnail(asked.place(explorer)?)?;
    Ok(picture.map_or(Answer::Later(None), Answer::Png))
}

fn map(explorer: &Explorer, asked: &Question) -> Result<Answer, Refusal> {
    let (map, whole) = explorer.map(asked.place(explorer)?, asked.shown()?)?;
    Ok(if whole { Answer::Json(map) } else { Answer::Later(Some(map)) })
}

fn tile(explorer: &Explorer, asked: &Question) -> Result<Answer, Refusal> {
    let at = [needed("level", asked.level)?, needed("x", asked.x)?, needed("y", asked.y)?];
    let ends = (needed("low", asked.low)?, needed("high", asked.high)?);
    if !(ends.0.is_finite() && ends.1.is_finite()) {
        return Err(wrong("low, high", Some(&format!("{}, {}", ends.0, ends.1)), "finite numbers"));
    }
    Ok(Answer::Png(explorer.tile(asked.place(explorer)?, asked.shown()?, at, ends)?))
}

fn cells(explorer: &Explorer, asked: &Question) -> Result<Answer, Refusal> {
    let queries = range("queries", asked.queries.as_deref())?;
    let keys = range("keys", asked.keys.as_deref())?;
    Ok(Answer::Json(explorer.cells(asked.place(explorer)?, asked.of()?, queries, keys)?))
}

fn query(explorer: &Explorer, asked: &Question) -> Result<Answer, Refusal> {
    let query = needed("query", asked.query)?;
    Ok(Answer::Json(explorer.query(asked.place(explorer)?, query, asked.count.unwrap_or(LISTED))?))
}

fn key(explorer: &Explorer, asked: &Question) -> Result<Answer, Refusal> {
    let key = needed("key", asked.key)?;
    Ok(explorer.key(asked.place(explorer)?, key, asked.count.unwrap_or(LISTED))?.into())
}

impl Question {
    fn place(&self, explorer: &Explorer) -> Result<Place, Refusal> {
        explorer.place(self.layer, needed("head", self.head)?, self.batch)
    }

    fn shown(&self) -> Result<Shown, Refusal> {
        // Colours of sums would be others at each level.
        let [max, mean, _] = POOLS;
        Ok(Shown { of: self.of()?, pool: chosen("pool", self.pool.as_deref(), &[max, mean])? })
    }

    fn of(&self) -> Result<Of, Refusal> {
        chosen("of", self.of.as_deref(), &OF)
    }
}

fn chosen<T: Copy>(what: &'static str, given: Option<&str>, choices: &[Choice<T>]) -> Result<T, Refusal> {
    let found = given.and_then(|name| explorer::named(choices, name));
    found.ok_or_else(|| wrong(what, given, &explorer::listed(choices)))
}

fn wrong(what: &'static str, got: Option<&str>, wanted: &str) -> Refusal {
    Refusal::Wrong { what, got: got.unwrap_or("nothing").to_string(), wanted: wanted.to_string() }
}

fn needed<T>(what: &'static str, given: Option<T>) -> Result<T, Refusal> {
    given.ok_or_else(|| wrong(what, None, "a number"))
}

/// `A:B`, half open.
fn range(what: &'static str, given: Option<&str>) -> Result<Range<usize>, Refusal> {
    let parsed = given.and_then(|text| text.split_once(':'));
    let parsed = parsed.and_then(|(start, end)| Some(start.parse().ok()?..end.parse().ok()?));
    parsed.ok_or_else(|| wrong(what, given, "A:B, from A up to but not including B"))
}

async fn answer(
    State(site): State<Arc<Site>>,
    asked: Asked,
    answer: fn(&Explorer, &Question) -> Result<Answer, Refusal>,
) -> Response {
    let Query(asked) = match asked {
        Ok(asked) => asked,
        Err(rejected) => {
            let words = rejected.body_text();
            let words = words.strip_prefix("Failed to deserialize query string: ").unwrap_or(&words);
            return refusal(StatusCode::BAD_REQUEST, words);
        }
    };
    let asked = Arc::new(asked);
    let since = Instant::now();
    loop {
        let (site_of_it, asked_of_it) = (site.clone(), asked.clone());
        let work = move || match &site_of_it.explorer {
            Some(explorer) => answer(explorer, &asked_of_it),
            None => Err(wrong("explorer", None, "a page of an input")),
        };
        match site.compute(work).await {
            Ok(Ok(Answer::Json(json))) => return Json(json).into_response(),
            Ok(Ok(Answer::Png(png))) => {
                return ([(header::CONTENT_TYPE, "image/png")], png.to_vec()).into_response();
            }
            Ok(Ok(Answer::Later(Some(known)))) if since.elapsed() >= PATIENCE => {
                return Json(known).into_response();
            }
            Ok(Ok(Answer::Later(_))) => tokio::time::sleep(ASK_AGAIN).await,
            Ok(Err(refused @ Refusal::Wrong { .. })) => {
                return refusal(StatusCode::UNPROCESSABLE_ENTITY, &refused.to_string());
            }
            Ok(Err(failed)) => return refusal(StatusCode::INTERNAL_SERVER_ERROR, &failed.to_string()),
            Err(response) => return response,
        }
    }
}
