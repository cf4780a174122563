//! Functions of a request, and the choice between them.

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::{Value, json};

use super::members::{check_members, items, member, text};
use super::schema::json_schema;
use crate::chat::responses::pointers::PointerMap;

/// Maximum functions of one request.
const MAX_TOOLS: usize = 512;
/// Members of a function. Those of its result and its behaviour are not sent to the model.
const DECLARATION: [&str; 7] = [
    "name",
    "description",
    "parameters",
    "parametersJsonSchema",
    "response",
    "responseJsonSchema",
    "behavior",
];

/// Adds the tools of a request and the choice between them to a chat completion.
pub(super) fn add_tools(
    tools: &Value,
    config: &Value,
    chat: &mut JsonObject,
    pointers: &mut PointerMap,
) -> Result<(), Fault> {
    let choice = FunctionChoice::read(config).map_err(|fault| fault.under("/toolConfig"))?;
    let declared = declared(tools).map_err(|fault| fault.under("/tools"))?;
    let mut functions = Vec::new();
    for (pointer, declaration) in declared {
        let name = text(declaration, "name");
        // The model may call only these.
        if !choice.allowed.is_empty() && !choice.allowed.contains(&name) {
            continue;
        }
        pointers.add(
            format!("/tools/{}", functions.len()),
            format!("/tools{pointer}"),
        );
        let function = json!({"name": name, "description": text(declaration, "description"),
            "parameters": parameters(declaration)});
        functions.push(json!({"type": "function", "function": function}));
    }
    // A choice without tools is an error of many servers.
    if functions.is_empty() {
        return Ok(());
    }
    if let Some(chosen) = choice.chosen() {
        chat.insert("tool_choice".to_owned(), chosen);
    }
    chat.insert("tools".to_owned(), Value::Array(functions));
    Ok(())
}

/// Returns the declarations of all tools, each with its pointer from the list.
fn declared(tools: &Value) -> Result<Vec<(String, &Value)>, Fault> {
    let mut found = Vec::new();
    for (n, tool) in items(tools, MAX_TOOLS)?.iter().enumerate() {
        // Tools that the provider runs bypass the rules of the gateway.
        check_members(tool, &["functionDeclarations"]).map_err(|fault| {
            let message =
                "must be functionDeclarations: tools that the provider runs are not granted";
            Fault::new(format!("/{n}{}", fault.pointer), message)
        })?;
        let pointer = format!("/{n}/functionDeclarations");
        let declarations = member(tool, "functionDeclarations");
        let declarations = items(declarations, MAX_TOOLS).map_err(|fault| fault.under(&pointer))?;
        for (n, declaration) in declarations.iter().enumerate() {
            let pointer = format!("{pointer}/{n}");
            check_declaration(declaration).map_err(|fault| fault.under(&pointer))?;
            found.push((pointer, declaration));
        }
    }
    require(
        found.len() <= MAX_TOOLS,
        "",
        "must have at most 512 functions",
    )?;
    Ok(found)
}

fn check_declaration(declaration: &Value) -> Result<(), Fault> {
    check_members(declaration, &DECLARATION)?;
    let has_name = !text(declaration, "name").is_empty();
    require(has_name, "/name", "must be the name of a function")?;
    for name in ["parameters", "parametersJsonSchema"] {
        let schema = member(declaration, name);
        let is_schema = schema.is_null() || schema.is_object();
        require(is_schema, &format!("/{name}"), "must be a schema")?;
    }
    Ok(())
}

fn parameters(declaration: &Value) -> Value {
    let schemas = ["parametersJsonSchema", "parameters"].map(|name| member(declaration, name));
    let schema = schemas.into_iter().find(|schema| schema.is_object());
    // A function without parameters has none; other APIs demand an object.
    schema.map_or_else(|| json!({"type": "object", "properties": {}}), json_schema)
}

/// Mode of the calls.
#[derive(Debug, Default)]
struct FunctionChoice<'a> {
    mode: &'a str,
    allowed: Vec<&'a str>,
}

impl<'a> FunctionChoice<'a> {
    fn read(config: &'a Value) -> Result<Self, Fault> {
        if config.is_null() {
            return Ok(Self::default());
        }
        check_members(config, &["functionCallingConfig"])?;
        let calling = member(config, "functionCallingConfig");
        if calling.is_null() {
            return Ok(Self::default());
        }
        let read = || -> Result<Self, Fault> {
            check_members(calling, &["mode", "allowedFunctionNames"])?;
            let allowed = items(member(calling, "allowedFunctionNames"), MAX_TOOLS)
                .map_err(|fault| fault.under("/allowedFunctionNames"))?;
            Ok(Self {
                mode: text(calling, "mode"),
                allowed: allowed.iter().filter_map(Value::as_str).collect(),
            })
        };
        read().map_err(|fault| fault.under("/functionCallingConfig"))
    }

    /// `None`: the model decides.
    fn chosen(&self) -> Option<Value> {
        match (
            self.mode.to_ascii_uppercase().as_str(),
            self.allowed.as_slice(),
        ) {
            ("NONE", _) => Some(json!("none")),
            ("ANY", [name]) => Some(json!({"type": "function", "function": {"name": name}})),
            ("ANY", _) => Some(json!("required")),
            _ => None,
        }
    }
}

fn require(holds: bool, pointer: &str, message: &str) -> Result<(), Fault> {
    if holds {
        return Ok(());
    }
    Err(Fault::new(pointer, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(tools: &Value, config: &Value) -> Result<JsonObject, Fault> {
        let mut chat = JsonObject::new();
        add_tools(tools, config, &mut chat, &mut PointerMap::default()).map(|()| chat)
    }

    #[test]
    fn functions_and_choices_are_translated() {
        let tools = json!([{"functionDeclarations": [
            {"name": "f", "description": "d", "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}},
            {"name": "g", "parametersJsonSchema": {"type": "object"}}]}, {"function_declarations": [{"name": "h"}]}]);
        let all = chat(&tools, &json!(null)).unwrap();
        let names: Vec<_> = all["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| &tool["function"]["name"])
            .collect();
        assert_eq!(names, ["f", "g", "h"]);
        let string = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        assert_eq!(all["tools"][0]["function"]["parameters"], string);
        assert!(!all.contains_key("tool_choice"));
        let any = |names: Value| json!({"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": names}});
        for (config, choice, count) in [
            (
                any(json!(["g"])),
                json!({"type": "function", "function": {"name": "g"}}),
                1,
            ),
            (any(json!(["g", "h"])), json!("required"), 2),
            (
                json!({"function_calling_config": {"mode": "NONE"}}),
                json!("none"),
                3,
            ),
        ] {
            let chosen = chat(&tools, &config).unwrap();
            assert_eq!(chosen["tool_choice"], choice);
            assert_eq!(chosen["tools"].as_array().unwrap().len(), count);
        }
        assert!(chat(&json!([]), &any(json!([]))).unwrap().is_empty());
    }

    #[test]
    fn refuses_tools_of_the_provider() {
        for (tools, pointer) in [
            (json!([{"googleSearch": {}}]), "/tools/0/googleSearch"),
            (
                json!([{"functionDeclarations": []}, {"codeExecution": {}}]),
                "/tools/1/codeExecution",
            ),
            (
                json!([{"functionDeclarations": [{"name": 1}]}]),
                "/tools/0/functionDeclarations/0/name",
            ),
            (json!({}), "/tools"),
        ] {
            assert_eq!(chat(&tools, &json!(null)).unwrap_err().pointer, pointer);
        }
        let config = json!({"retrievalConfig": {}});
        let fault = chat(&json!([]), &config).unwrap_err();
        assert_eq!(fault.pointer, "/toolConfig/retrievalConfig");
    }
}
