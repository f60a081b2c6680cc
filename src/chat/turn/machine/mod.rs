//! [`ChatTurn`]: one request to a conversation, from its arrival to the end of its response. It makes
//! decisions and never awaits.
//!
//! ```text
//! message, edit,      ┌──────────── every reply that brings something new ◀──────────────┐
//! answers, Stop, GET ─▶ Loading ─▶ decide ─┬─▶ Respond(Join) ─▶ Over                       │
//!                                          ├─▶ Respond(Stored) ─▶ Over                     │
//!                     a reader: Mend ──────┼─▶ Taking ─▶ Reading ──────────────────────────┤
//!                                          ├─▶ Closing: the ledger closes open calls ──────┤
//!                                          ├─▶ Saving(fence) ─▶ Completing: the old log ───┤
//!                                          ├─▶ Beginning ──────────────────────────────────┘
//!                                          └─▶ Saving(run) ─▶ EndingOld ─▶ Running
//! Running: Redeeming ─▶ Stepping ─▶ Claiming ─▶ Agent ─▶ Loading ─▶ Saving ─▶ Ending ─▶ Over
//!              │            ▲                              │
//!              └────────────┴── a result is unread ◀───────┘
//!                                Agent: the end of a step is saved when the next one begins
//! Running ── an append is refused, or the chat names another run ─▶ StopAgent ─▶ Over
//! DELETE: Loading ─▶ Taking ─▶ Reading ─▶ Revoking ─▶ Deleting ─▶ Revoking ─▶ EndingOld ─▶ Over
//! ```
//!
//! A turn whose answers are being executed is in `AwaitingResults` instead of `Over`. A turn that
//! finds that another one is ending the live run is in `Waiting`, and loads again.
//!
//! The chapter "One run in a chat" of `DESIGN.md` gives the rules.

mod chat_turn;
mod decide;
mod io;
mod running;

pub(crate) use self::chat_turn::{ChatTurn, TurnSettings};
pub(crate) use self::io::{
    Action, AgentCall, Effect, EndedMessage, Input, Request, Response, RunLimit,
};
