//! The platform actions that the gateway defines, with the shapes of their targets and payloads.

use crate::nearest::nearest;

/// Type of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberType {
    /// A text, by its maximum number of characters.
    Text(usize),
    /// An id of the platform: a text of 1–255 characters, or an integer.
    Id,
    /// An integer, by its maximum; the minimum is 0.
    Integer(u64),
    Flag,
}

/// One member of a target or payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberShape {
    pub(super) name: &'static str,
    pub(super) kind: MemberType,
    pub(super) is_required: bool,
}

/// A platform action.
#[derive(Debug)]
pub struct ActionDefinition {
    pub name: &'static str,
    pub(super) target: &'static [MemberShape],
    pub(super) payload: &'static [MemberShape],
}

const fn required(name: &'static str, kind: MemberType) -> MemberShape {
    MemberShape {
        name,
        kind,
        is_required: true,
    }
}

const fn optional(name: &'static str, kind: MemberType) -> MemberShape {
    MemberShape {
        name,
        kind,
        is_required: false,
    }
}

const MESSAGE: &[MemberShape] = &[required("message_id", MemberType::Id)];
const USER: &[MemberShape] = &[required("user_id", MemberType::Id)];
const REQUEST: &[MemberShape] = &[required("request_id", MemberType::Id)];
const TEXT: &[MemberShape] = &[required("text", MemberType::Text(20_000))];

/// All actions, by name. Each stays in the conversation of the event, so no target names a chat or group.
pub const ACTIONS: [ActionDefinition; 11] = [
    ActionDefinition {
        name: "friend_request.answer",
        target: REQUEST,
        payload: &[
            required("approve", MemberType::Flag),
            optional("remark", MemberType::Text(1_000)),
        ],
    },
    ActionDefinition {
        name: "group.leave",
        target: &[],
        payload: &[],
    },
    ActionDefinition {
        name: "group.rename",
        target: &[],
        payload: &[required("name", MemberType::Text(255))],
    },
    ActionDefinition {
        name: "group_invite.answer",
        target: REQUEST,
        payload: &[required("approve", MemberType::Flag)],
    },
    ActionDefinition {
        name: "member.kick",
        target: USER,
        payload: &[],
    },
    ActionDefinition {
        name: "member.mute",
        target: USER,
        // 0: until it is ended.
        payload: &[optional(
            "duration_seconds",
            MemberType::Integer(31_536_000),
        )],
    },
    ActionDefinition {
        name: "member.unmute",
        target: USER,
        payload: &[],
    },
    ActionDefinition {
        name: "message.edit",
        target: MESSAGE,
        payload: TEXT,
    },
    ActionDefinition {
        name: "message.react",
        target: MESSAGE,
        payload: &[
            required("reaction", MemberType::Text(64)),
            optional("remove", MemberType::Flag),
        ],
    },
    ActionDefinition {
        name: "message.recall",
        target: MESSAGE,
        payload: &[],
    },
    ActionDefinition {
        name: "message.send",
        target: &[],
        payload: TEXT,
    },
];

/// Returns the action with this name.
pub fn definition(name: &str) -> Option<&'static ActionDefinition> {
    ACTIONS.iter().find(|action| action.name == name)
}

/// Returns the names of all actions.
pub fn action_names() -> impl Iterator<Item = &'static str> {
    ACTIONS.iter().map(|action| action.name)
}

/// Returns the message for a name that the catalogue does not have.
pub fn unknown_action(name: &str) -> String {
    if let Some(meant) = nearest(name, action_names()) {
        return format!("is no platform action; did you mean {meant}?");
    }
    let all: Vec<_> = action_names().collect();
    format!("is no platform action; there are {}", all.join(", "))
}
