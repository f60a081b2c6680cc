//! Loads the state of a conversation, which may have a live run.

use super::error::ChatError;
use super::inner::Inner;
use super::log::decision::View;
use super::log::state::ChatState;
use super::store::{ChatStoreError, LoadLog, LogHead, LogKey, ReadLogEntries};

impl Inner {
    /// Loads a conversation with what its live run has written so far. Returns `None` if there is none.
    pub(super) async fn load_state(
        &self,
        key: &LogKey,
    ) -> Result<Option<(ChatState, LogHead)>, ChatError> {
        let _turn = self.loads.turn(&key.owner).await;
        if let Some(known) = self.folds.of(key)
            && let Some(continued) = self.continued(key, known).await?
        {
            return Ok(Some(continued));
        }
        let load = LoadLog { key, has_frames: true, has_messages: true };
        let Some(loaded) = self.logs.load(load).await? else { return Ok(None) };
        let state = ChatState::of_loaded(&key.chat, &key.owner, &loaded);
        let (state, _) = state.map_err(ChatStoreError::new)?;
        Ok(Some((state, loaded.head)))
    }

    /// Adds the newest entries to a state. Returns `None` if the log does not continue it.
    async fn continued(
        &self,
        key: &LogKey,
        known: View,
    ) -> Result<Option<(ChatState, LogHead)>, ChatError> {
        let View { mut state, head, .. } = known;
        loop {
            let (epoch, position, max_bytes) = (head.epoch, state.length(), MAX_READ_BYTES);
            let read = ReadLogEntries { key, epoch, position, max_bytes, is_reader: false };
            let Some(page) = self.logs.read(read).await? else { return Ok(None) };
            state.apply_stored(&page.entries).map_err(ChatStoreError::new)?;
            if page.entries.is_empty() || state.length() >= page.head.length {
                return Ok(Some((state, page.head)));
            }
        }
    }
}

/// How many bytes of a log are read at once.
const MAX_READ_BYTES: usize = 1 << 20;
