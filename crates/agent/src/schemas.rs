//! [`Schemas`]: the schemas of what the page of an agent reads, from which its types are made.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use ui_message_stream::Json;

use crate::schema::schema_json;

/// The JSON Schemas of an agent's tools, and of the data parts and the metadata of its host.
///
/// As JSON it is `{"tools": {"<name>": {"input": …, "output"?: …}}, "data": {"<name>": …}, "metadata"?: …}`. The program
/// `ui-message-stream-types` of the npm package `ui-message-stream-client` makes a file with types of it. A host prints
/// it, for example if it is started with an argument:
///
/// ```
/// # use ui_message_stream::model::Model;
/// # use ui_message_stream_agent::Agent;
/// # use schemars::JsonSchema;
/// # use serde::Serialize;
/// /// The data of the part `data-progress`.
/// #[derive(Serialize, JsonSchema)]
/// struct Progress {
///     done: u32,
///     of: u32,
/// }
///
/// fn print_schemas(agent: &Agent) -> Result<(), serde_json::Error> {
///     let schemas = agent.schemas().with_data::<Progress>("progress");
///     println!("{}", serde_json::to_string(&schemas)?);
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone, Serialize)]
pub struct Schemas {
    tools: BTreeMap<Box<str>, ToolSchemas>,
    data: BTreeMap<Box<str>, Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Json>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct ToolSchemas {
    pub(crate) input: Json,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<Json>,
}

impl Schemas {
    pub(crate) fn new(tools: BTreeMap<Box<str>, ToolSchemas>) -> Self {
        Schemas { tools, data: BTreeMap::new(), metadata: None }
    }

    /// Adds the type of a data part. `name` is without `data-`.
    ///
    /// # Panics
    /// Panics if the schema of `T` cannot be written as JSON. A derived schema always can.
    #[must_use]
    #[track_caller]
    pub fn with_data<T: Serialize + JsonSchema>(mut self, name: impl Into<Box<str>>) -> Self {
        self.data.insert(name.into(), serialized_schema::<T>());
        self
    }

    /// Sets the type of the metadata of messages.
    ///
    /// # Panics
    /// Panics if the schema of `T` cannot be written as JSON. A derived schema always can.
    #[must_use]
    #[track_caller]
    pub fn with_metadata<T: Serialize + JsonSchema>(mut self) -> Self {
        self.metadata = Some(serialized_schema::<T>());
        self
    }
}

/// Returns the schema of a type as it is serialized, and not as it is read.
#[track_caller]
pub(crate) fn serialized_schema<T: JsonSchema>() -> Json {
    let generator = SchemaSettings::default().for_serialize().into_generator();
    schema_json(&generator.into_root_schema_for::<T>())
}
