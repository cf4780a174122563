//! Codes of diagnostics, by the stage that gives them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Effect of a diagnostic on the declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Refuses the declaration.
    Error,
    /// Accepts it; shown to the model once.
    Warning,
    /// Accepts it; logged and counted.
    Info,
}

/// The gate that gives a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValidationStage {
    Parse,
    Envelope,
    Shape,
    Graph,
    Reference,
    Executor,
    Argument,
    Effect,
    Policy,
    Recovery,
    RunTime,
}

macro_rules! codes {
    ($($stage:ident { $($name:ident $text:literal $level:ident $fix:literal,)* })*) => {
        /// Code of a diagnostic or of an action's error. Each variant documents its hint for the model.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[expect(clippy::doc_markdown, reason = "the hints are texts for models")]
        pub enum Code { $($(#[doc = $fix] #[serde(rename = $text)] $name,)*)* }

        impl Code {
            /// Every code, in the order of the gates.
            pub const ALL: &'static [Self] = &[$($(Self::$name,)*)*];

            /// Stable name in notices and records.
            pub fn as_str(self) -> &'static str {
                match self { $($(Self::$name => $text,)*)* }
            }

            /// The gate that gives it.
            pub fn stage(self) -> ValidationStage {
                match self { $($(Self::$name => ValidationStage::$stage,)*)* }
            }

            /// Its effect on the declaration.
            pub fn level(self) -> Severity {
                match self { $($(Self::$name => Severity::$level,)*)* }
            }

            /// Hint for the model: the next step.
            pub fn fix(self) -> &'static str {
                match self { $($(Self::$name => $fix,)*)* }
            }
        }
    };
}

#[rustfmt::skip]
codes! {
    Parse {
        NoDeclaration "no_declaration" Error "reply with one AgentProtocolOutput call",
        SeveralDeclarations "several_declarations" Error "reply with one agent-protocol block",
        SeveralCarrierCalls "several_carrier_calls" Error "put all work into the calls of one AgentProtocolOutput call",
        MixedCarriers "mixed_carriers" Error "use only AgentProtocolOutput, without other calls or blocks",
        IncompleteOutput "incomplete_output" Error "the reply was cut off: send a shorter declaration",
        BadJson "bad_json" Error "send valid JSON",
        DuplicateKey "duplicate_key" Error "name each key of an object once",
        TooDeep "too_deep" Error "nest less deeply",
        TooLarge "too_large" Error "send less, or split the work over two declarations",
        NotObject "not_object" Error "send one JSON object",
        SectionDuplicate "section_duplicate" Error "give each section a heading of its own",
        SectionInvalidId "section_invalid_id" Error "name sections with letters, digits, dots, dashes and underscores",
        SectionTooLarge "section_too_large" Error "shorten the section",
        UnclosedFence "unclosed_fence" Error "close the agent-protocol block with its back-ticks",
        Unwrapped "unwrapped" Info "send the fields at the top of the arguments",
        Unstringified "unstringified" Info "send JSON values, not JSON in a string",
        Repaired "repaired" Info "send the value as the schema has it",
    }
    Envelope {
        MissingType "missing_type" Error "set type to agent.protocol",
        WrongType "wrong_type" Error "set type to agent.protocol",
        MissingVersion "missing_version" Error "set version to \"1\"",
        UnsupportedVersion "unsupported_version" Error "set version to \"1\"",
        MissingIntent "missing_intent" Error "set intent",
        BadIntent "bad_intent" Error "use one of the allowed intents",
        MissingPayload "missing_payload" Error "add a payload object",
        PayloadTypeMissing "payload_type_missing" Error "set payload.type",
        BadPayloadType "bad_payload_type" Error "use one of the allowed payload types",
        PayloadMismatch "payload_mismatch" Error "use the payload type that belongs to the intent",
        UnknownBase "unknown_base" Error "set base to the run_id of an open graph",
        UnknownField "unknown_field" Warning "leave the field out: it has no effect",
    }
    Shape {
        MissingField "missing_field" Error "add the field",
        WrongJsonType "wrong_json_type" Error "use the JSON type that the field needs",
        BadEnum "bad_enum" Error "use one of the allowed values",
        BadId "bad_id" Error "begin with a letter; use letters, digits, _ and -, at most 64",
        DuplicateId "duplicate_id" Error "give each action an id of its own",
        MissingCalls "missing_calls" Error "list the work in calls",
        EmptyCalls "empty_calls" Error "list at least one call, or use kind answer",
        SingularCall "singular_call" Error "use calls, a list, even for one call",
        UnexpectedCalls "unexpected_calls" Error "use kind act for calls; answer after their results",
        MessageMissing "message_missing" Warning "give an answer a message",
        TextTooLong "text_too_long" Error "shorten the text",
        TooManyActions "too_many_actions" Error "declare fewer actions, or use for_each",
        FeatureDisabled "feature_disabled" Error "leave the field out: this agent does not have it",
        UnsupportedPolicy "unsupported_policy" Warning "the policy is kept and has no effect",
    }
    Graph {
        UnknownDependency "unknown_dependency" Error "depend on ids of this declaration or of earlier results",
        SelfDependency "self_dependency" Error "an action cannot wait for itself",
        DependencyCycle "dependency_cycle" Error "remove one dependency of the cycle",
        DependencyUnsatisfied "dependency_unsatisfied" Error "that earlier action did not succeed: declare it again or continue without it",
        EdgeAdded "edge_added" Info "data edges need no depends",
        LoopUnbounded "loop_unbounded" Error "give repeat and for_each a max, and repeat an until",
        FanOutTooLarge "fan_out_too_large" Error "at most 64 items run at once, 128 in a graph: take a slice with from, max and rest \"leave\"",
        NeverRuns "never_runs" Warning "the condition contradicts a dependency: drop the dependency",
        DepthOver16 "depth_over_16" Warning "long chains are slow: join steps",
    }
    Reference {
        BadReference "bad_reference" Error "write md:ID, action:ID.output#/path, input:user.goal, artifact:NAME or runtime://runs/RUN/actions/ID/output",
        UnknownSection "unknown_section" Error "add a section with this heading",
        UnknownActionRef "unknown_action_ref" Error "refer to an action of this declaration, or by runtime:// to an earlier one",
        RefNotUpstream "ref_not_upstream" Error "that graph is not finished: wait for its results",
        RefForbidden "ref_forbidden" Error "refer to runs of this conversation whose results you may see",
        RefExpired "ref_expired" Error "the stored result is gone: run the action again",
        RefTooLarge "ref_too_large" Error "select a part with a pointer",
        PointerMissing "pointer_missing" Error "the value has no such place",
        PointerType "pointer_type" Error "the value is text: refer to it without a pointer",
        SectionUnused "section_unused" Warning "refer to the section by md:ID or drop it",
        NumericSection "numeric_section" Warning "name sections by meaning",
        StringInterpolation "string_interpolation" Error "make the complete value {\"$ref\": \"…\"}: references inside texts are not replaced",
    }
    Executor {
        ExecutorTypeAuto "executor_type_auto" Error "name the type; only target may be auto",
        ExecutorTypeMissing "executor_type_missing" Error "set executor.type",
        UnknownTool "unknown_tool" Error "use a tool of the catalogue",
        UnknownAgent "unknown_agent" Error "use an agent of the catalogue, or auto",
        AutoTool "auto_tool" Error "name the tool",
        NoMatch "no_match" Error "name a target, or ask for capabilities that the catalogue has",
        Unavailable "unavailable" Error "use another target, or continue without it",
        NotGranted "not_granted" Error "use a target that is granted to you",
        AgentNotDelegable "agent_not_delegable" Error "that agent takes no work from you",
        DepthExceeded "depth_exceeded" Error "do the work yourself: delegation is too deep",
        InteractionUnavailable "interaction_unavailable" Error "this surface cannot ask a user: continue or answer",
        SecretInForm "secret_in_form" Error "never ask for secrets",
        WaitTooLong "wait_too_long" Error "wait less long",
        PersistUnavailable "persist_unavailable" Error "leave persist out: nothing can be stored here",
        UnknownWord "unknown_word" Error "use a runtime or human word of the catalogue",
        TargetOverridden "target_overridden" Info "the runtime chose another target",
    }
    Argument {
        ArgsSchema "args_schema" Error "fit the arguments to the schema of the tool",
        ArgsNotObject "args_not_object" Error "send arguments as a JSON object",
        ArgsTooLarge "args_too_large" Error "send smaller arguments, or a reference",
    }
    Effect {
        EffectsUnknown "effects_unknown" Error "declare the call with AgentProtocolOutput",
        EffectsForbidden "effects_forbidden" Error "this effect is not allowed here",
        ApprovalRequired "approval_required" Info "the user must approve it before it runs",
        WriteConflict "write_conflict" Error "order the two writes with depends",
    }
    Policy {
        ProtocolDisabled "protocol_disabled" Error "you do not declare actions: answer in text",
        BudgetExhausted "budget_exhausted" Error "answer with what you have",
        RepeatDeclaration "repeat_declaration" Error "the same work was declared before: use its results or answer",
        TurnLimit "turn_limit" Error "answer with what you have, and say what is open",
        GraphLimit "graph_limit" Error "finish or cancel an open graph first",
        PersistUpgraded "persist_upgraded" Warning "the graph is stored, since it may outlive this turn",
        NoteMissing "note_missing" Warning "add a message for the user about this work",
        NoteRepeatsDsl "note_repeats_dsl" Warning "write the message for a reader, without ids or JSON",
        TitleMissing "title_missing" Warning "give the declaration a title",
    }
    Recovery {
        RecoveredDirectTool "recovered_direct_tool" Info "call AgentProtocolOutput instead of the tool",
        RecoveredDelegation "recovered_delegation" Info "call AgentProtocolOutput instead of the agent",
        RecoveredText "recovered_text" Info "call AgentProtocolOutput instead of writing a call as text",
        PlainAnswer "plain_answer" Info "answer with kind answer",
        RecoveryRefused "recovery_refused" Error "declare the call with AgentProtocolOutput",
    }
    RunTime {
        ToolError "tool_error" Error "read the error, change the arguments or continue without it",
        Timeout "timeout" Error "ask for less, or try again later",
        RateLimited "rate_limited" Error "try again later",
        HostUnavailable "host_unavailable" Error "try again later",
        Unauthorized "unauthorized" Error "continue without it",
        ChildFailed "child_failed" Error "read the error of the agent and decide",
        ChildUnsatisfying "child_unsatisfying" Error "the agent did not do the work: decide with what it reports",
        ChildCancelled "child_cancelled" Error "the agent was cancelled",
        ApprovalDenied "approval_denied" Error "the user refused: do not ask again for the same",
        ApprovalUnavailable "approval_unavailable" Error "no person can approve here: continue without it",
        InteractionExpired "interaction_expired" Error "the user did not answer in time",
        UpstreamFailed "upstream_failed" Error "decide about the failed action it needs",
        InputUnresolved "input_unresolved" Error "the value it needs does not exist",
        ConditionFalse "condition_false" Info "its condition did not hold",
        OutputTooLarge "output_too_large" Error "ask for a smaller result",
        UncertainEffect "uncertain_effect" Error "whether it happened is unknown; a person must say",
        Canceled "canceled" Error "it was cancelled",
        Deadline "deadline" Error "the time is over: answer with what is done",
        LeaseLost "lease_lost" Error "another run continues this graph",
        ExecutorFault "executor_fault" Error "try again, or continue without it",
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
