//! HTML of the answer page. Every text of an interaction passes through [`escaped`].

use std::fmt::Write as _;
use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use domain::interaction::form_post::{ACTION, control_name};
use http::HeaderValue;
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::interaction::{
    InteractionAction, InteractionActionStyle, InteractionField, InteractionFieldType,
    InteractionRequest,
};
use serde_json::Value;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8886;--accent:#2457d6;--danger:#b3261e}\
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:2rem 1rem;max-width:42rem}\
h1{font-size:1.4rem;overflow-wrap:anywhere}\
pre{font:14px/1.45 ui-monospace,monospace;border:1px solid var(--line);border-radius:.4rem;padding:.8rem;\
overflow:auto;max-height:60vh;white-space:pre-wrap;overflow-wrap:anywhere}\
label,legend{display:block;font-weight:600;margin:1rem 0 .3rem;overflow-wrap:anywhere}\
label.one{font-weight:400;margin:.3rem 0}\
fieldset{border:0;padding:0;margin:0}\
input[type=text],input[type=number],textarea,select{box-sizing:border-box;width:100%;font:inherit;padding:.5rem;\
border:1px solid var(--line);border-radius:.4rem}\
button{font:inherit;padding:.5rem 1.1rem;margin:1.4rem .6rem 0 0;border:1px solid var(--line);border-radius:.4rem;\
overflow-wrap:anywhere}\
button.primary{background:var(--accent);border-color:var(--accent);color:#fff}\
button.danger{background:var(--danger);border-color:var(--danger);color:#fff}\
.faults{border-left:.3rem solid var(--danger);padding-left:.8rem}\
.small{opacity:.75;font-size:.9rem}";

/// Content security policy: no scripts, no external resources, one inline style, and forms to the same origin
/// only.
pub(super) static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let style = STANDARD.encode(digest(&SHA256, STYLE.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).expect("base64 is ASCII")
});

/// Escapes a text for an attribute or element. Invisible and bidirectional control characters appear as code
/// points, so that the visible text is the actual text.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    let mut before = ' ';
    // CR LF is one line break; a lone CR would appear as a code point.
    for character in text.replace("\r\n", "\n").chars() {
        let previous = std::mem::replace(&mut before, character);
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            '\n' | '\t' => html.push(character),
            hidden if is_hidden(hidden) || is_joiner(hidden) && !takes_joiner(previous) => {
                let _ = write!(html, "[U+{:04X}]", u32::from(hidden));
                // The code point is printed as text, so a joiner after it has nothing to join.
                before = ' ';
            }
            shown => html.push(shown),
        }
    }
    html
}

/// Escapes a text for the value of a control without any change, because the form sends it back.
fn exact(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            // As references: parsers normalize raw line breaks in attributes.
            '&' | '<' | '>' | '"' | '\'' | '\r' | '\n' | '\t' => {
                let _ = write!(html, "&#{};", u32::from(character));
            }
            other => html.push(other),
        }
    }
    html
}

/// Characters without a picture: `Default_Ignorable_Code_Point` of Unicode without joiners, line separators, and the
/// braille blank.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}'
                | '\u{180B}'..='\u{180F}' | '\u{200B}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}'
                | '\u{2060}'..='\u{206F}' | '\u{2800}' | '\u{3164}' | '\u{FE00}'..='\u{FE0D}' | '\u{FEFF}'
                | '\u{FFA0}' | '\u{FFF0}'..='\u{FFF8}' | '\u{1BCA0}'..='\u{1BCA3}' | '\u{1D173}'..='\u{1D17A}'
                | '\u{E0000}'..='\u{E0FFF}'
        )
}

/// Joiners, and the selectors of text and emoji style.
fn is_joiner(character: char) -> bool {
    matches!(character, '\u{200C}' | '\u{200D}' | '\u{FE0E}' | '\u{FE0F}')
}

/// Characters whose glyph a joiner changes: Arabic and Indic scripts, symbols and emoji. After others it is invisible.
fn takes_joiner(character: char) -> bool {
    matches!(
        character,
        '\u{0600}'..='\u{0DFF}' | '\u{2190}'..='\u{27FF}' | '\u{2900}'..='\u{2BFF}' | '\u{FE0F}'
            | '\u{1F000}'..='\u{1FAFF}'
    )
}

fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head>\n<body><main>\n{body}</main></body></html>\n",
        title = escaped(title),
    )
}

/// The text of a page without a form.
#[derive(Clone, Copy)]
pub(super) enum PageNotice<'a> {
    Answered,
    AnsweredOtherwise,
    Expired,
    Cancelled,
    NoLink,
    /// Any other error, with its message.
    Refused(&'a str),
}

impl<'a> PageNotice<'a> {
    /// Selects the notice for an error.
    pub(super) fn of(code: &str, reason: Option<&str>, message: &'a str) -> Self {
        match (code, reason) {
            ("unauthenticated", _) => Self::NoLink,
            (_, Some("already_submitted")) => Self::AnsweredOtherwise,
            (_, Some("expired")) => Self::Expired,
            (_, Some("cancelled")) => Self::Cancelled,
            _ => Self::Refused(message),
        }
    }
}

pub(super) fn notice(notice: PageNotice<'_>) -> String {
    let (title, text) = match notice {
        PageNotice::Answered => (
            "Answered",
            "This question was answered. You can close this page.",
        ),
        PageNotice::AnsweredOtherwise => (
            "Already answered",
            "This question was answered before, and the first answer counts. Your answer was not taken.",
        ),
        PageNotice::Expired => (
            "Expired",
            "This question has expired and can no longer be answered. The agent has to ask again.",
        ),
        PageNotice::Cancelled => (
            "Cancelled",
            "The run of this question was cancelled, and the question can no longer be answered.",
        ),
        PageNotice::NoLink => (
            "Link not valid",
            "No question has this link. A newer link replaces the one before it: ask its sender for the newest.",
        ),
        PageNotice::Refused(message) => ("Not taken", message),
    };
    let body = format!("<h1>{title}</h1>\n<p>{}</p>\n", escaped(text));
    document(title, &body)
}

/// An interaction as a form.
pub(super) struct AnswerFormPage<'a> {
    pub(super) request: &'a InteractionRequest,
    /// Epoch seconds.
    pub(super) expires_at: i64,
    /// Submitted values by field id. They replace the defaults.
    pub(super) values: &'a JsonObject,
    /// Faults of the submitted values.
    pub(super) faults: &'a [Fault],
}

impl AnswerFormPage<'_> {
    /// Renders the complete page.
    pub(super) fn html(&self) -> String {
        let request = self.request;
        let mut body = format!("<h1>{}</h1>\n", escaped(&request.title));
        let text = request
            .description
            .as_deref()
            .filter(|text| !text.is_empty());
        // Without a description, the fallback text may say more than the title.
        let text = text.or(Some(&request.fallback_text)
            .filter(|text| **text != request.title)
            .map(String::as_str));
        if let Some(text) = text {
            // HTML parsers drop the first line break in `pre`.
            let _ = write!(body, "<pre>\n{}</pre>\n", escaped(text));
        }
        self.write_faults(&mut body);
        body.push_str("<form method=\"post\" autocomplete=\"off\">\n");
        for (index, field) in request.fields.iter().enumerate() {
            self.write_field(&mut body, &control_name(index), field);
        }
        write_actions(&mut body, &request.actions);
        body.push_str("</form>\n");
        if let Some(at) = DateTime::<Utc>::from_timestamp(self.expires_at, 0) {
            let at = at.format("%Y-%m-%d %H:%M UTC");
            let _ = writeln!(body, "<p class=\"small\">Can be answered until {at}.</p>");
        }
        document(&request.title, &body)
    }

    fn write_faults(&self, body: &mut String) {
        if self.faults.is_empty() {
            return;
        }
        body.push_str("<div class=\"faults\"><p>The answer was not taken:</p><ul>\n");
        // Bounded, as in the JSON response.
        for fault in Fault::first(self.faults) {
            let escaped_id = fault.pointer.strip_prefix("/values/");
            let field = escaped_id.and_then(|id| {
                let mut fields = self.request.fields.iter();
                fields.find(|field| domain::form::escape_pointer(&field.id) == id)
            });
            let name = field.map_or("The answer", |field| &field.label);
            let _ = writeln!(
                body,
                "<li>{} {}</li>",
                escaped(name),
                escaped(&fault.message)
            );
        }
        body.push_str("</ul></div>\n");
    }

    fn write_field(&self, body: &mut String, name: &str, field: &InteractionField) {
        let label = escaped(&field.label);
        let value = self.values.get(&field.id).unwrap_or(&field.default);
        // Same rule as in the check of the answer: with several actions, one may cancel the form.
        let is_required = field.required && self.request.actions.len() <= 1;
        let required = if is_required { " required" } else { "" };
        let hint = field.placeholder.as_deref().map(escaped);
        let hint = hint.map_or_else(String::new, |hint| format!(" placeholder=\"{hint}\""));
        let text = exact(&match value {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        });
        let _ = match field.kind {
            InteractionFieldType::Boolean => {
                let checked = if *value == Value::Bool(true) {
                    " checked"
                } else {
                    ""
                };
                writeln!(
                    body,
                    "<label class=\"one\"><input type=\"checkbox\" name=\"{name}\" value=\"true\"{checked}> {label}</label>"
                )
            }
            InteractionFieldType::Textarea => write!(
                body,
                "<label for=\"{name}\">{label}</label>\n\
                 <textarea id=\"{name}\" name=\"{name}\" rows=\"5\"{hint}{required}>\n{text}</textarea>\n"
            ),
            InteractionFieldType::Select => {
                let options = options(field, value, |option, is_picked, _| {
                    let selected = if is_picked { " selected" } else { "" };
                    format!(
                        "<option value=\"{}\"{selected}>{}</option>\n",
                        option.0, option.1
                    )
                });
                write!(
                    body,
                    "<label for=\"{name}\">{label}</label>\n<select id=\"{name}\" name=\"{name}\"{required}>\n\
                     <option value=\"\"></option>\n{options}</select>\n"
                )
            }
            InteractionFieldType::Multiselect => {
                let options = options(field, value, |option, is_picked, more| {
                    let checked = if is_picked { " checked" } else { "" };
                    format!(
                        "<label class=\"one\"><input type=\"checkbox\" name=\"{name}\" value=\"{}\"{checked}> {}{more}</label>\n",
                        option.0, option.1
                    )
                });
                write!(
                    body,
                    "<fieldset><legend>{label}</legend>\n{options}</fieldset>\n"
                )
            }
            InteractionFieldType::Text
            | InteractionFieldType::Number
            | InteractionFieldType::File => {
                let kind = match field.kind {
                    // Ends the attribute and begins the next; the literal contains no foreign text.
                    InteractionFieldType::Number => "number\" step=\"any",
                    _ => "text",
                };
                write!(
                    body,
                    "<label for=\"{name}\">{label}</label>\n\
                     <input id=\"{name}\" type=\"{kind}\" name=\"{name}\" value=\"{text}\"{hint}{required}>\n"
                )
            }
        };
    }
}

/// Renders the options of a field. `write` gets value and label, the selection, and the description.
fn options(
    field: &InteractionField,
    value: &Value,
    write: impl Fn((&str, &str), bool, &str) -> String,
) -> String {
    let is_picked = |option: &str| match value {
        Value::String(picked) => picked == option,
        Value::Array(picked) => picked.iter().any(|one| one.as_str() == Some(option)),
        _ => false,
    };
    let options = field.options.iter().map(|option| {
        let more = option.description.as_deref().map(escaped);
        let more = more.map_or_else(String::new, |more| {
            format!(" <span class=\"small\">{more}</span>")
        });
        let shown = (exact(&option.value), escaped(&option.label));
        write((&shown.0, &shown.1), is_picked(&option.value), &more)
    });
    options.collect()
}

fn write_actions(body: &mut String, actions: &[InteractionAction]) {
    if actions.is_empty() {
        body.push_str("<button class=\"primary\">Send</button>\n");
    }
    for action in actions {
        let style = match action.style {
            InteractionActionStyle::Default => "plain",
            InteractionActionStyle::Primary => "primary",
            InteractionActionStyle::Danger => "danger",
        };
        let _ = writeln!(
            body,
            "<button class=\"{style}\" name=\"{ACTION}\" value=\"{}\">{}</button>",
            exact(&action.id),
            escaped(&action.label),
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn escapes_markup_and_hidden_characters() {
        assert_eq!(
            escaped("<b a=\"'&'\">\u{202E}x\u{200B}\r\n\t\r"),
            "&lt;b a=&quot;&#39;&amp;&#39;&quot;&gt;[U+202E]x[U+200B]\n\t[U+000D]"
        );
        for (text, shown) in [
            ("a\u{E0100}b", "a[U+E0100]b"),
            ("a\u{3164}b", "a[U+3164]b"),
            ("a\u{200D}b", "a[U+200D]b"),
            ("a\u{FE0F}\u{200D}b", "a[U+FE0F][U+200D]b"),
            (
                "\u{2764}\u{FE0F}\u{200D}\u{1F525}",
                "\u{2764}\u{FE0F}\u{200D}\u{1F525}",
            ),
            ("\u{0645}\u{06CC}\u{200C}", "\u{0645}\u{06CC}\u{200C}"),
            ("a\u{AD}\u{2800}\u{FFA0}b", "a[U+00AD][U+2800][U+FFA0]b"),
        ] {
            assert_eq!(escaped(text), shown);
        }
        assert_eq!(exact("<a>\u{202E}\r"), "&#60;a&#62;\u{202E}&#13;");
    }

    #[test]
    fn escapes_every_text_of_interactions() {
        let evil = "\"><script>x</script>";
        let option = json!({"value": evil, "label": evil, "description": evil});
        let kinds = [
            "text",
            "textarea",
            "select",
            "multiselect",
            "number",
            "boolean",
            "file",
        ];
        let field = |kind: &str| {
            json!({"id": format!("{evil}{kind}"), "label": evil, "type": kind, "placeholder": evil,
                "default": evil, "options": [option]})
        };
        let request = json!({
            "interaction_id": evil, "title": evil, "description": evil, "fallback_text": evil,
            "fields": kinds.map(field), "actions": [{"id": evil, "label": evil}],
        });
        let request: InteractionRequest = serde_json::from_value(request).unwrap();
        let faults = [Fault::new(format!("/values/{evil}text"), evil)];
        let form = AnswerFormPage {
            request: &request,
            expires_at: 0,
            values: &JsonObject::new(),
            faults: &faults,
        };
        let html = form.html();
        assert!(!html.contains("<script") && !html.contains(evil), "{html}");
        assert!(!super::notice(PageNotice::Refused(evil)).contains(evil));
    }
}
