//! [`SqliteStore::sealing_key`]: the key of approvals, in the file.

use rusqlite::{OptionalExtension, Transaction};
use ui_message_stream::approval::KeyRing;

use crate::SqliteStore;
use crate::error::SqliteError;
use crate::file::Durability;

impl SqliteStore {
    /// Returns the key that seals approval ids. The first call creates it at random and stores it in
    /// the file; later calls, also those of other processes, return the same.
    ///
    /// **Every backup of the file holds the key.** A person who has the key can create approval ids.
    /// Each still needs a pending record in the ledger, and a user who may decide on it. To keep the
    /// key elsewhere, do not call this function, and pass a secret of your own to
    /// [`Approvals::with_keys`](ui_message_stream::approval::Approvals::with_keys): the file then
    /// holds no key. Approvals that are open at such a change are rejected, and the model can request
    /// them again.
    ///
    /// ```
    /// # async fn approvals(store: ui_message_stream_sqlite::SqliteStore)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use ui_message_stream::approval::{Approvals, EmptyToolbox, KeyRing};
    ///
    /// let keys = match std::env::var("APPROVAL_SECRET") {
    ///     Ok(secret) => KeyRing::new(1, secret.as_bytes())?,
    ///     Err(_) => store.sealing_key().await?,
    /// };
    /// let approvals = Approvals::new(EmptyToolbox).with_keys(keys);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`SqliteError`] if the file cannot be read or written, or if the system has no random bytes.
    pub async fn sealing_key(&self) -> Result<KeyRing, SqliteError> {
        let stored = self.write(Durability::Synced, |transaction: &Transaction<'_>, _| {
            let select = "SELECT id, secret FROM sealing_key";
            let stored = transaction
                .query_row(select, [], |row| Ok((row.get::<_, u32>(0)?, row.get::<_, Vec<u8>>(1)?)))
                .optional()?;
            if let Some(key) = stored {
                return Ok(key);
            }
            let mut id = [0; 4];
            let mut secret = vec![0; SECRET_BYTES];
            getrandom::fill(&mut id).map_err(|_| SqliteError::Random)?;
            getrandom::fill(&mut secret).map_err(|_| SqliteError::Random)?;
            // At random, so that it differs from the numbers that a host gives its keys.
            let id = u32::from_be_bytes(id);
            let insert = "INSERT INTO sealing_key (only, id, secret) VALUES (1, ?1, ?2)";
            transaction.execute(insert, (id, &secret))?;
            Ok((id, secret))
        });
        let (id, secret) = stored.await?;
        KeyRing::new(id, &secret).map_err(|_| SqliteError::Unreadable("sealing key"))
    }
}

const SECRET_BYTES: usize = 32;
