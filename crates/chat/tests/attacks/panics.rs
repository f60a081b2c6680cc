//! Records every panic of this program with its thread. A process has only one panic hook, and
//! other tests of this program may panic on purpose.

use std::sync::{Mutex, Once, PoisonError};
use std::thread::{self, ThreadId};

static PANICS: Mutex<Vec<Panic>> = Mutex::new(Vec::new());

struct Panic {
    thread: ThreadId,
    thread_name: Option<String>,
    text: String,
}

/// Starts to record panics. Further calls have no effect.
pub(crate) fn record() {
    static RECORDING: Once = Once::new();
    RECORDING.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let here = thread::current();
            let thread_name = here.name().map(str::to_owned);
            PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(Panic {
                thread: here.id(),
                thread_name,
                text: panic.to_string(),
            });
            before(panic);
        }));
    });
}

/// The panics on the calling thread since [`record`].
pub(crate) fn on_this_thread() -> Vec<String> {
    let here = thread::current().id();
    texts(|panic| panic.thread == here)
}

/// The panics on all threads of this name since [`record`].
pub(crate) fn on_threads_named(name: &str) -> Vec<String> {
    texts(|panic| panic.thread_name.as_deref() == Some(name))
}

fn texts(is_selected: impl Fn(&Panic) -> bool) -> Vec<String> {
    let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
    panics.iter().filter(|panic| is_selected(panic)).map(|panic| panic.text.clone()).collect()
}
