//! The points at which the server is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A point between the receipt of an approval response and the emission of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Point {
    AnswerReceived,
    PermissionAsked,
    BeforeClaim,
    AfterClaim,
    BeforeRenewal,
    ToolBegun,
    EffectWritten,
    EffectDone,
    BeforeOutcome,
    AfterOutcome,
    BeforeEmission,
    AfterEmission,
}

impl Point {
    pub(crate) const ALL: [Point; 12] = [
        Point::AnswerReceived,
        Point::PermissionAsked,
        Point::BeforeClaim,
        Point::AfterClaim,
        Point::BeforeRenewal,
        Point::ToolBegun,
        Point::EffectWritten,
        Point::EffectDone,
        Point::BeforeOutcome,
        Point::AfterOutcome,
        Point::BeforeEmission,
        Point::AfterEmission,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Point::AnswerReceived => "answer-received",
            Point::PermissionAsked => "permission-asked",
            Point::BeforeClaim => "before-claim",
            Point::AfterClaim => "after-claim",
            Point::BeforeRenewal => "before-renewal",
            Point::ToolBegun => "tool-begun",
            Point::EffectWritten => "effect-written",
            Point::EffectDone => "effect-done",
            Point::BeforeOutcome => "before-outcome",
            Point::AfterOutcome => "after-outcome",
            Point::BeforeEmission => "before-emission",
            Point::AfterEmission => "after-emission",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|point| point.name() == name)
    }
}

/// The point at which this process waits to be killed.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    at: Option<Point>,
    is_reached: Arc<AtomicBool>,
}

impl Stop {
    pub(crate) fn at(point: Option<Point>) -> Self {
        Stop { at: point, is_reached: Arc::default() }
    }

    /// If this is the point to stop at, and it is passed for the first time, prints its name and
    /// waits forever.
    pub(crate) async fn pass(&self, point: Point) {
        if self.at == Some(point) && !self.is_reached.swap(true, Ordering::SeqCst) {
            println!("at {}", point.name());
            std::future::pending::<()>().await;
        }
    }
}
