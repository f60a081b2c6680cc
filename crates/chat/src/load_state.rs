//! Loads the state of a conversation, which may have a live run.

use super::inner::Inner;
use super::loads::LoadTurn;
use super::log::decision::View;
use super::log::state::ChatState;
use super::store::{ChatStoreError, LoadLog, LogKey, ReadLogEntries};

impl Inner {
    /// Loads a conversation with what its live run has written so far. Returns `None` if there is none.
    pub(super) async fn load_state(&self, key: &LogKey) -> Result<Option<View>, ChatStoreError> {
        let turn = self.loads.turn(&key.owner).await;
        self.load_state_in(key, &turn).await
    }

    /// As [`load_state`](Self::load_state), in a turn of its owner to load.
    pub(super) async fn load_state_in(
        &self,
        key: &LogKey,
        _turn: &LoadTurn,
    ) -> Result<Option<View>, ChatStoreError> {
        if let Some(known) = self.folds.of(key)
            && let Some(continued) = self.continued(key, known).await?
        {
            return Ok(Some(continued));
        }
        let load = LoadLog { key, has_frames: true, has_messages: true };
        let Some(loaded) = self.logs.load(load).await? else { return Ok(None) };
        let state = ChatState::of_loaded(&key.chat, &key.owner, &loaded);
        let (state, stored) = state.map_err(ChatStoreError::new)?;
        Ok(Some(View { state, head: loaded.head, stored }))
    }

    /// Adds the newest entries to a state. Returns `None` if the log does not continue it.
    async fn continued(
        &self,
        key: &LogKey,
        mut view: View,
    ) -> Result<Option<View>, ChatStoreError> {
        let epoch = view.head.epoch;
        let max_bytes = MAX_READ_BYTES;
        loop {
            let position = view.state.length();
            let read = ReadLogEntries { key, epoch, position, max_bytes, is_reader: false };
            let Some(page) = self.logs.read(read).await? else { return Ok(None) };
            view.state.apply_stored(&page.entries).map_err(ChatStoreError::new)?;
            view.head = page.head;
            if page.entries.is_empty() || view.state.length() >= view.head.length {
                return Ok(Some(view));
            }
        }
    }
}

/// How many bytes of a log are read at once.
const MAX_READ_BYTES: usize = 1 << 20;
