//! The tools: fixed data, and tokens that end in the salt of a play.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::tasks::ITEMS;

/// Bytes of the log.
const LOG_BYTES: usize = 2 << 20;
/// Filler prose of a page, in addition to its code.
const PROSE: &str = "The harbour office keeps this page. It lists the hours of high and low water, the berths that are free, \
the boats that are due, and the names of the pilots on duty. Ask at the desk before you move a buoy. ";
const PROSE_TIMES: usize = 4;

/// One tool: name, its one argument, effect, and its description for models.
pub(super) const TOOLS: [(&str, Option<&str>, &str, &str); 15] = [
    (
        "read_page",
        Some("page"),
        "read",
        "Reads a page: its text and its code.",
    ),
    (
        "find_page",
        Some("topic"),
        "read",
        "Finds the page about a topic.",
    ),
    ("list_items", None, "read", "Lists all items."),
    (
        "read_item",
        Some("item"),
        "read",
        "Reads the count of an item.",
    ),
    (
        "open_case",
        Some("customer"),
        "read",
        "Finds the case of a customer.",
    ),
    (
        "get_invoice",
        Some("case"),
        "read",
        "Finds the invoice of a case.",
    ),
    (
        "get_payment",
        Some("invoice"),
        "read",
        "Finds the payment of an invoice.",
    ),
    (
        "get_receipt",
        Some("payment"),
        "read",
        "Finds the receipt of a payment.",
    ),
    (
        "inspect_room",
        Some("room"),
        "read",
        "Describes what is in a room.",
    ),
    (
        "mirror_a",
        Some("file"),
        "read",
        "Fetches a file from mirror a.",
    ),
    (
        "mirror_b",
        Some("file"),
        "read",
        "Fetches a file from mirror b.",
    ),
    ("read_log", None, "read", "Reads the whole log."),
    ("read_draft", None, "read", "Reads the draft."),
    ("send_mail", Some("body"), "irreversible", "Sends a mail."),
    (
        "check_calendar",
        Some("booking"),
        "read",
        "Finds a free slot for a booking.",
    ),
];
/// Tools with effects and without approval.
pub(super) const WRITES: [(&str, &str, &str); 2] = [
    ("book_room", "room", "Books a room."),
    ("book_car", "slot", "Books a car for a slot."),
];

/// The response of a tool.
pub(super) enum ToolResponse {
    Json(Value),
    Text(String),
    /// The call fails with this text.
    Fails(&'static str),
}

/// Answers a call in a play with this salt. Fails if an argument comes from no earlier result.
pub(super) fn answer(tool: &str, args: &Value, salt: &str) -> ToolResponse {
    let arg = |name: &str| args[name].as_str().unwrap_or_default();
    let token = |name: &str| format!("{name}-{salt}");
    let linked = |name: &str, of: &str, gives: &str| {
        if arg(name) == token(of) {
            ToolResponse::Json(json!({gives: token(gives)}))
        } else {
            ToolResponse::Fails("there is no such thing")
        }
    };
    match tool {
        "read_page" => page(arg("page"), salt),
        "find_page" => ToolResponse::Json(json!({"page": token("found")})),
        "list_items" => {
            let items = (1..=ITEMS).map(|item| token(&format!("item-{item:02}")));
            ToolResponse::Json(json!({"items": items.collect::<Vec<_>>()}))
        }
        "read_item" if arg("item").ends_with(salt) => {
            let count = arg("item").replace("item-", "count-");
            ToolResponse::Json(json!({"count": count}))
        }
        "open_case" => ToolResponse::Json(json!({"case": token("case")})),
        "get_invoice" => linked("case", "case", "invoice"),
        "get_payment" => linked("invoice", "invoice", "payment"),
        "get_receipt" => linked("payment", "payment", "receipt"),
        "inspect_room" => inspect(arg("room"), salt),
        "mirror_b" => ToolResponse::Json(json!({"content": token("content")})),
        "read_log" => ToolResponse::Text(log(&token("alert"))),
        "read_draft" => ToolResponse::Json(json!({"draft": token("draft")})),
        "send_mail" if arg("body") == token("draft") => {
            ToolResponse::Json(json!({"number": token("sent")}))
        }
        "book_room" => ToolResponse::Json(json!({"booking": token("room-booking")})),
        "check_calendar" if arg("booking") == token("room-booking") => {
            ToolResponse::Json(json!({"slot": token("slot")}))
        }
        "book_car" if arg("slot") == token("slot") => {
            ToolResponse::Json(json!({"booking": token("car-booking")}))
        }
        "mirror_a" => ToolResponse::Fails("mirror a is down"),
        _ => ToolResponse::Fails("there is no such thing"),
    }
}

fn page(page: &str, salt: &str) -> ToolResponse {
    let code = if page == format!("found-{salt}") {
        format!("code-{page}")
    } else if page.starts_with('p') {
        format!("code-{page}-{salt}")
    } else {
        return ToolResponse::Fails("there is no such page");
    };
    ToolResponse::Json(json!({"code": code, "text": PROSE.repeat(PROSE_TIMES)}))
}

/// The clue is part of prose; only a model that reads it finds the next name.
fn inspect(name: &str, salt: &str) -> ToolResponse {
    let number = match name.strip_suffix(salt) {
        Some("room-1-") => 2,
        Some("room-2-") => 3,
        Some("room-3-") => 4,
        None if name == "hall" => 1,
        _ => return ToolResponse::Fails("there is no such room"),
    };
    let found = if number == 4 {
        format!("the treasure: treasure-{salt}")
    } else {
        format!("a note that says clue-{number}-{salt}; go to the room of that number")
    };
    ToolResponse::Text(format!(
        "A dusty place with a table. On the table lies {found}."
    ))
}

fn log(alert: &str) -> String {
    let mut text = String::with_capacity(LOG_BYTES + 256);
    let mut number = 0;
    let mut has_alert = false;
    while text.len() < LOG_BYTES {
        number += 1;
        if !has_alert && text.len() > LOG_BYTES / 2 {
            has_alert = true;
            let _ = writeln!(
                text,
                "line {number} ALERT pump 4 has stopped, number {alert}"
            );
        } else {
            let _ = writeln!(
                text,
                "line {number} info pump {} runs at {} turns",
                number % 9,
                900 + number % 77
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_must_come_from_results() {
        let invoice = |case: &str| answer("get_invoice", &json!({"case": case}), "7");
        assert!(matches!(invoice("case-7"), ToolResponse::Json(_)));
        assert!(matches!(invoice("case-8"), ToolResponse::Fails(_)));
    }

    #[test]
    fn the_log_holds_one_alert_in_its_middle() {
        let ToolResponse::Text(text) = answer("read_log", &json!({}), "7") else {
            panic!("a text")
        };
        let at = text.find("ALERT").unwrap();
        assert!((LOG_BYTES / 2..LOG_BYTES / 2 + 200).contains(&at));
        assert!(text[at..].lines().next().unwrap().ends_with("alert-7"));
        assert_eq!(text.matches("ALERT").count(), 1);
    }
}
