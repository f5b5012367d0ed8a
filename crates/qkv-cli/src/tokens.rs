//! Who attends whom, in the words of the tokens that a file may carry.

use std::io::Write;

use qkv_view::scene::token;

use crate::request::{Number, Request};
use crate::terminal::Terminal;

/// Queries that are shown; more would leave the screen.
const SHOWN: usize = 16;

/// For each of the first queries of one head of the first batch, the token that it attends most, with the weight.
pub fn print<T: Number>(
    request: &Request<'_, T>,
    head: usize,
    terminal: &mut Terminal,
) -> anyhow::Result<()> {
    let extents = &request.extents;
    let Some(tokens) = request.input.tokens.as_ref().and_then(|batches| batches.first()) else {
        return Ok(());
    };
    let head = head.min(extents.heads.saturating_sub(1));
    // Tokens name the keys; they name the queries too where there are as many.
    if tokens.len() != extents.len_key || extents.len_key != extents.len_query || extents.rows() == 0 {
        return Ok(());
    }
    let rows: Vec<_> = (0..extents.len_query.min(SHOWN)).map(|query| (0, head, query)).collect();
    let attention = request.attention(0);
    let call = request.call(&attention);
    let references = call.reference(&rows).map_err(|error| request.explained(error))?;
    let lines: Vec<[String; 3]> = references
        .iter()
        .zip(tokens)
        .map(|(reference, name)| {
            let weights = reference.weights.iter().enumerate();
            let most = weights.max_by(|a, b| a.1.total_cmp(b.1)).filter(|most| *most.1 > 0.0);
            match most {
                Some((key, weight)) => [token(name), token(&tokens[key]), format!("{weight:.2}")],
                None => [token(name), "nothing".to_string(), String::new()],
            }
        })
        .collect();
    let others = extents.len_query - rows.len();
    let others =
        if others > 0 { format!(" (of the first {SHOWN} tokens; {others} more)") } else { String::new() };
    writeln!(terminal, "\nin head {head}, each token attends most{others}:")?;
    print_in_columns(&lines, terminal)
}

fn print_in_columns(lines: &[[String; 3]], terminal: &mut Terminal) -> anyhow::Result<()> {
    let width = |part: usize| lines.iter().map(|line| line[part].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    let half = lines.len().div_ceil(2);
    for (index, left) in lines[..half].iter().enumerate() {
        let right = lines.get(half + index);
        let columns = [Some(left), right].into_iter().flatten();
        let texts: Vec<_> = columns
            .map(|[token, most, weight]| format!("{token:>first$} → {most:<second$} {weight:<4}"))
            .collect();
        writeln!(terminal, "  {}", texts.join("      ").trim_end())?;
    }
    Ok(())
}
