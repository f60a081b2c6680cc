//! [`Items`]: what was streamed of the items of a response, and which items only its last event holds.
//!
//! Servers count items in different ways, and some give an item another id in every event. An item is therefore the one of
//! its type with the same id; else the one with the same index; else the first one that nothing tells apart from it.

use std::collections::HashSet;

use serde_json::Value;

use crate::fields::Fields;
use ui_message_stream::event::ToolCall;
use ui_message_stream::id::PartId;

/// The items of a response.
#[derive(Debug, Default)]
pub(super) struct Items {
    open: Vec<Item>,
    ended: Vec<Item>,
    /// The number of items so far.
    count: usize,
}

/// An item of a response, as far as it was streamed.
#[derive(Debug, Default)]
pub(super) struct Item {
    number: usize,
    known_by: Identity,
    /// The call of a tool.
    pub(super) call: Option<ToolCall>,
    /// The arguments of the call so far, before its item is complete.
    pub(super) arguments: String,
    /// Whether these are all its arguments.
    pub(super) has_all_arguments: bool,
    /// The text or reasoning parts that were started.
    pub(super) parts: HashSet<PartId>,
    /// Whether reasoning was emitted as text.
    pub(super) has_reasoning_text: bool,
    /// The number of the last reasoning summary.
    pub(super) summary: u64,
    /// What the text cites.
    pub(super) citations: Vec<Value>,
    is_ended: bool,
}

/// What an item is known by.
#[derive(Debug, Default)]
pub(super) struct Identity {
    kind: String,
    index: Option<u64>,
    /// The ids of the item and of its call. The first one is used for the item's part.
    ids: Vec<String>,
    /// The name of the tool that it calls.
    name: Option<String>,
}

impl Identity {
    /// Returns the identity in an item.
    pub(super) fn of_item(index: Option<u64>, item: &Fields<'_>) -> Self {
        let kind = item.text("type").unwrap_or_default();
        let is_call = kind == "function_call";
        let name = is_call.then(|| item.text("name")).flatten();
        let call_id = is_call.then(|| item.text("call_id")).flatten();
        Identity { kind, index, ids: item.text("id").into_iter().chain(call_id).collect(), name }
    }

    /// Returns the identity in an event about a piece of an item of this type.
    pub(super) fn of_event(kind: &str, event: &Fields<'_>) -> Self {
        Identity {
            kind: kind.to_owned(),
            index: event.number("output_index"),
            ids: event.text("item_id").into_iter().collect(),
            name: None,
        }
    }

    fn shares_an_id(&self, other: &Identity) -> bool {
        self.kind == other.kind && self.ids.iter().any(|id| other.ids.contains(id))
    }

    /// Whether both may be the same item, by what both have beside their ids and indices.
    fn is_like(&self, other: &Identity) -> bool {
        let has_other_name = self.name.is_some() && other.name.is_some() && self.name != other.name;
        self.kind == other.kind && !has_other_name
    }
}

impl Items {
    /// Returns the open item that an event is about. Opens it if necessary.
    pub(super) fn of(&mut self, event: Identity) -> &mut Item {
        let item = match self.place(&event, false) {
            Some(place) => self.open.remove(place),
            None => self.new_item(event),
        };
        let place = self.open.len();
        self.open.push(item);
        &mut self.open[place]
    }

    /// Removes the open item that begins with another event, or returns a new one.
    pub(super) fn begin(&mut self, item: Identity) -> Item {
        match self.open.iter().position(|it| it.known_by.shares_an_id(&item)) {
            Some(place) => self.open.remove(place).with(item),
            None => self.new_item(item),
        }
    }

    pub(super) fn add_open(&mut self, item: Item) {
        self.open.push(item);
    }

    pub(super) fn add_ended(&mut self, item: Item) {
        self.ended.push(Item { is_ended: true, ..item });
    }

    /// Removes the open item that ends.
    pub(super) fn take(&mut self, end: Identity) -> Item {
        match self.place(&end, true) {
            Some(place) => self.open.remove(place).with(end),
            None => self.new_item(end),
        }
    }

    /// Merges the output of the whole response into what was streamed. Returns the items that did not end, those that
    /// were not streamed, and all reasoning, each with what the output has of it. The other open items remain.
    ///
    /// Some servers give all items other ids here. An item without a known id is then the next one of its type that is not
    /// in the output by its id, rather one with its name than one whose name is not known. It is a new item only if no
    /// item of its type is left: a call never runs twice.
    pub(super) fn merge<'o, 'v>(
        &mut self,
        output: &'o [Fields<'v>],
    ) -> Vec<(Item, &'o Fields<'v>)> {
        // A call that begins again behind its end.
        let ended = &self.ended;
        let is_again =
            |item: &Item| ended.iter().any(|it| it.known_by.shares_an_id(&item.known_by));
        self.open.retain(|item| !item.is_function_call() || !is_again(item));
        let mut streamed: Vec<Item> = self.ended.drain(..).chain(self.open.drain(..)).collect();
        // A call of which only pieces of its arguments were sent is the least likely one.
        let is_piece = |it: &Item| it.is_function_call() && it.call.is_none() && !it.is_ended;
        streamed.sort_by_key(|item| (is_piece(item), item.number));
        let by_id = output.iter().map(|fields| {
            let identity = Identity::of_item(None, fields);
            let known = streamed.iter().position(|it| it.known_by.shares_an_id(&identity));
            (known.map(|known| streamed.remove(known)), identity, fields)
        });
        let by_id: Vec<_> = by_id.collect();
        let kinds: HashSet<String> = streamed.iter().map(|it| it.known_by.kind.clone()).collect();
        let merged = by_id.into_iter().filter_map(|(known, identity, fields)| {
            let item = match known {
                Some(item) => item.with(identity),
                None => match likest(&streamed, &identity) {
                    Some(known) => streamed.remove(known).with(identity),
                    None if kinds.contains(&identity.kind) => {
                        fields.leave_out("id", "an item of its type was streamed with another id");
                        return None;
                    }
                    None => self.new_item(identity),
                },
            };
            (!item.is_ended || item.kind() == "reasoning").then_some((item, fields))
        });
        let merged = merged.collect();
        self.open.extend(streamed.into_iter().filter(|item| !item.is_ended));
        merged
    }

    /// Returns the items that did not end, in their order.
    pub(super) fn rest(&mut self) -> Vec<Item> {
        std::mem::take(&mut self.open)
    }

    fn new_item(&mut self, known_by: Identity) -> Item {
        self.count += 1;
        Item { number: self.count - 1, known_by, ..Item::default() }
    }

    /// Returns the place of the open item that is most like this one: of several the first one if it ends, and else the
    /// last one.
    fn place(&self, other: &Identity, is_end: bool) -> Option<usize> {
        let open = self.open.iter().map(|item| item.likeness(other, is_end)).enumerate();
        let (place, likeness) = if !is_end {
            open.max_by_key(|(_, likeness)| *likeness)?
        } else {
            open.rev().max_by_key(|(_, likeness)| *likeness)?
        };
        (likeness > 0).then_some(place)
    }
}

/// Returns the place of the first item that may be this one. One with its name is first.
fn likest(items: &[Item], identity: &Identity) -> Option<usize> {
    let like = items.iter().enumerate().filter(|(_, item)| item.known_by.is_like(identity));
    let first = like.min_by_key(|(_, item)| item.known_by.name != identity.name);
    first.map(|(place, _)| place)
}

impl Item {
    pub(super) fn kind(&self) -> &str {
        &self.known_by.kind
    }

    /// Returns the first id of the item, or the empty string.
    pub(super) fn id(&self) -> &str {
        self.known_by.ids.first().map_or("", String::as_str)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.is_ended
    }

    pub(super) fn is_function_call(&self) -> bool {
        self.kind() == "function_call"
    }

    pub(super) fn part_id(&self) -> PartId {
        match self.id() {
            "" => PartId::from(format!("item-{}", self.number)),
            id => id.into(),
        }
    }

    fn with(mut self, other: Identity) -> Self {
        self.known_by.ids.extend(other.ids);
        self.known_by.name = self.known_by.name.or(other.name);
        self
    }

    /// Returns how likely it is that this item is the other one, or 0 if it is not.
    fn likeness(&self, other: &Identity, is_end: bool) -> u8 {
        let known_by = &self.known_by;
        if known_by.kind != other.kind {
            return 0;
        }
        let has_no_index = known_by.index.is_none() || other.index.is_none();
        let has_no_id = known_by.ids.is_empty() || other.ids.is_empty();
        let is_same_index = !has_no_index && known_by.index == other.index;
        let is_same_call = known_by.name.is_some() && known_by.name == other.name;
        let may_be = is_same_call || has_no_id && (is_end || has_no_index);
        u8::from(known_by.shares_an_id(other)) * 4 + u8::from(is_same_index) * 2 + u8::from(may_be)
    }
}
