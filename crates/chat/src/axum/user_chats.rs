//! The routes of the conversations of a user: their list, their titles, and their end.

use std::borrow::Cow;

use ::axum::extract::{Path, RawQuery, State};
use ::axum::response::{IntoResponse, Response};
use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::answers::{NOT_CACHED, chat_id, json};
use super::history::query_parameter;
use crate::ChatServer;
use crate::store::{ChatCursor, ListChats};
use ui_message_stream::approval::Principal;
use ui_message_stream::axum::{ChatRejection, JsonBody};
use ui_message_stream::json::FieldError;
use ui_message_stream::policy::ChatPolicy;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TitleBody {
    title: String,
}

pub(super) async fn list(
    State(chats): State<ChatServer>,
    _: ChatPolicy,
    principal: Principal,
    RawQuery(query): RawQuery,
) -> Result<Response, ChatRejection> {
    let query = query.as_deref().unwrap_or_default();
    let is_events = |pair: &str| matches!(pair, "events" | "events=" | "events=1" | "events=true");
    let follows = query.split('&').any(is_events);
    let limit = match query_parameter(query, "limit") {
        None => Some(DEFAULT_PAGE_CHATS),
        Some(limit) => limit.parse().ok().filter(|limit| (1..=MAX_PAGE_CHATS).contains(limit)),
    };
    let limit = limit.ok_or_else(|| FieldError::new("limit", NO_LIMIT))?;
    let after = query_parameter(query, "after").map(str::parse::<ChatCursor>).transpose();
    let after = after.map_err(|_| FieldError::new("after", NO_CHAT_PLACE))?;
    let search =
        query_parameter(query, "search").map(|text| decoded("search", text)).transpose()?;
    if follows {
        let other = after.map(|_| "after").or(search.map(|_| "search"));
        if let Some(other) = other {
            return Err(FieldError::new(other, NOT_FOLLOWED).into());
        }
        return Ok((NOT_CACHED, chats.follow(&principal, limit)?).into_response());
    }
    let list = ListChats { limit, after: after.as_ref(), search: search.as_deref() };
    Ok(json(&chats.list(&principal, list).await?))
}

/// Returns the text of a parameter of a query, as `URLSearchParams` writes it.
pub(super) fn decoded(name: &'static str, text: &str) -> Result<String, FieldError> {
    let text = text.replace('+', " ");
    let text = percent_decode_str(&text).decode_utf8();
    text.map(Cow::into_owned).map_err(|_| FieldError::new(name, NO_TEXT))
}

pub(super) async fn delete(
    State(chats): State<ChatServer>,
    policy: ChatPolicy,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<StatusCode, ChatRejection> {
    let id = chat_id(id, policy.limits())?;
    chats.delete(&principal, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn delete_all(
    State(chats): State<ChatServer>,
    _: ChatPolicy,
    principal: Principal,
) -> Result<StatusCode, ChatRejection> {
    chats.delete_all(&principal).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn rename(
    State(chats): State<ChatServer>,
    principal: Principal,
    Path(id): Path<String>,
    request: JsonBody,
) -> Result<StatusCode, ChatRejection> {
    let JsonBody { bytes: body, limits, .. } = request;
    let id = chat_id(id, &limits)?;
    let TitleBody { title } =
        serde_json::from_slice(&body).map_err(|_| FieldError::new("title", NOT_A_TITLE))?;
    chats.rename(&principal, &id, &title).await?;
    Ok(StatusCode::NO_CONTENT)
}

const NOT_A_TITLE: &str = "expected a body `{\"title\": \"…\"}`";

const NO_LIMIT: &str = "expected a whole number from 1 to 100";

const NO_CHAT_PLACE: &str = "not a place in the list of chats";

const NO_TEXT: &str = "expected a text in UTF-8";

const NOT_FOLLOWED: &str = "cannot be combined with `events`";

/// The number of conversations of a page, unless the client asks for another one.
const DEFAULT_PAGE_CHATS: usize = 20;

/// The maximum number of conversations of a page.
const MAX_PAGE_CHATS: usize = 100;
