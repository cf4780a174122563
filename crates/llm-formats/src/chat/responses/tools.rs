//! Converts tools of a request to functions of a completion and back.

use std::collections::BTreeMap;

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::{Value, json};

use super::pointers::PointerMap;

/// Maximum tools of one request, including those in namespaces.
const MAX_TOOLS: usize = 512;
/// Maximum characters of a function name that all providers accept.
const NAME_CHARS: usize = 64;
/// Argument of a custom tool's function that holds its input.
const INPUT: &str = "input";
/// Members of a tool that a Responses provider receives.
const OF_TOOL: [&str; 6] = [
    "type",
    "name",
    "description",
    "parameters",
    "strict",
    "format",
];

/// A tool as its client defines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestTool {
    pub(super) is_custom: bool,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// Tools of a request by function name.
#[derive(Clone, Debug, Default)]
pub(super) struct FunctionNames(BTreeMap<String, RequestTool>);

impl FunctionNames {
    /// Returns the tool of a function name. Unknown names become plain functions.
    pub(super) fn tool(&self, function: &str) -> RequestTool {
        let named = || RequestTool {
            is_custom: false,
            namespace: None,
            name: function.to_owned(),
        };
        self.0.get(function).cloned().unwrap_or_else(named)
    }

    fn add(&mut self, function: &str, tool: RequestTool) -> bool {
        self.0.insert(function.to_owned(), tool).is_none()
    }
}

/// The tools of a request.
#[derive(Debug, Default)]
pub(super) struct RequestTools {
    /// As chat completion functions.
    pub(super) functions: Vec<Value>,
    /// As a Responses provider receives them.
    pub(super) own: Vec<Value>,
    /// The same for `additional_tools` items, by index in `input`.
    pub(super) own_of_items: BTreeMap<usize, Value>,
    pub(super) names: FunctionNames,
    /// True while the tools of `additional_tools` items are read.
    is_of_item: bool,
}

/// Returns the function name of a tool. A name that is too long is cut and gets a checksum of the full name.
pub(super) fn function_name(namespace: Option<&str>, name: &str) -> String {
    let full_name = match namespace {
        None => return name.to_owned(),
        // Clients with MCP servers end their namespaces this way already.
        Some(space) if space.ends_with("__") => format!("{space}{name}"),
        Some(space) => format!("{space}__{name}"),
    };
    if full_name.chars().count() <= NAME_CHARS {
        return full_name;
    }
    let sum = checksum(full_name.as_bytes());
    // Underscore and eight hexadecimal digits complete the limit.
    let prefix: String = full_name.chars().take(NAME_CHARS - 9).collect();
    format!("{prefix}_{sum:08x}")
}

/// FNV-1a, 32 bits: stable across processes.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| {
        (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// Reads the tools of a request and of its `additional_tools` items. Pointers of faults refer to the request.
pub(super) fn read_tools(
    body: &JsonObject,
    pointers: &mut PointerMap,
) -> Result<RequestTools, Fault> {
    let mut tools = RequestTools::default();
    let tool_list = body.get("tools").unwrap_or(&Value::Null);
    tools.own = tools.add_list(tool_list, "/tools", pointers)?;
    let items = body.get("input").and_then(Value::as_array);
    for (n, item) in items.into_iter().flatten().enumerate() {
        if item["type"] == "additional_tools" {
            // Later items may repeat a name; a request's own tools may not.
            tools.is_of_item = true;
            let own = tools.add_list(&item["tools"], &format!("/input/{n}/tools"), pointers)?;
            tools.own_of_items.insert(n, Value::Array(own));
        }
    }
    Ok(tools)
}

impl RequestTools {
    /// Adds a list of tools. Returns them as a Responses provider receives them.
    fn add_list(
        &mut self,
        list: &Value,
        pointer: &str,
        pointers: &mut PointerMap,
    ) -> Result<Vec<Value>, Fault> {
        let tool_list = match list {
            Value::Null => return Ok(Vec::new()),
            Value::Array(tool_list) => tool_list,
            _ => return Err(Fault::new(pointer, "must be a list")),
        };
        let mut own = Vec::with_capacity(tool_list.len());
        for (n, tool) in tool_list.iter().enumerate() {
            let pointer = format!("{pointer}/{n}");
            // A Responses provider gets the namespace, a completion its inner tools.
            if tool["type"] == "namespace" {
                own.push(self.add_namespace(tool, &pointer, pointers)?);
            } else {
                self.add(tool, None, &pointer, pointers)?;
                own.push(own_tool(tool));
            }
        }
        Ok(own)
    }

    fn add_namespace(
        &mut self,
        tool: &Value,
        pointer: &str,
        pointers: &mut PointerMap,
    ) -> Result<Value, Fault> {
        let space = name_of(tool, pointer)?;
        let inner = tool["tools"].as_array();
        let inner =
            inner.ok_or_else(|| Fault::new(format!("{pointer}/tools"), "must be a list"))?;
        for (n, one) in inner.iter().enumerate() {
            self.add(one, Some(space), &format!("{pointer}/tools/{n}"), pointers)?;
        }
        let own: Vec<_> = inner.iter().map(own_tool).collect();
        let description = &tool["description"];
        Ok(json!({"type": "namespace", "name": space, "description": description, "tools": own}))
    }

    fn add(
        &mut self,
        tool: &Value,
        namespace: Option<&str>,
        pointer: &str,
        pointers: &mut PointerMap,
    ) -> Result<(), Fault> {
        let is_custom = match tool["type"].as_str() {
            Some("function") => false,
            Some("custom") => true,
            // Hosted tools would run outside of the gateway's grants.
            Some(other) => return Err(unknown_type(other, pointer)),
            None => return Err(Fault::new(format!("{pointer}/type"), "must be a text")),
        };
        let name = name_of(tool, pointer)?;
        let function = function_name(namespace, name);
        let request_tool = RequestTool {
            is_custom,
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        };
        let converted = if is_custom {
            custom(&function, tool)
        } else {
            plain(&function, tool)
        };
        if !self.names.add(&function, request_tool) {
            if !self.is_of_item {
                let message = "must be a name that no other tool of the request has";
                return Err(Fault::new(format!("{pointer}/name"), message));
            }
            // Items of later turns repeat or change earlier tools.
            let named = |tool: &&mut Value| tool["function"]["name"] == function.as_str();
            if let Some(earlier) = self.functions.iter_mut().find(named) {
                *earlier = converted;
            }
            return Ok(());
        }
        if self.functions.len() == MAX_TOOLS {
            let message = format!("must have at most {MAX_TOOLS} tools");
            return Err(Fault::new("/tools", message));
        }
        // Only new tools: the pointer of a repeated one stays that of the first.
        pointers.add(
            format!("/tools/{}", self.functions.len()),
            pointer.to_owned(),
        );
        self.functions.push(converted);
        Ok(())
    }
}

fn name_of<'a>(tool: &'a Value, pointer: &str) -> Result<&'a str, Fault> {
    let name = tool["name"].as_str().filter(|name| !name.is_empty());
    name.ok_or_else(|| {
        Fault::new(
            format!("{pointer}/name"),
            "must be a text that is not empty",
        )
    })
}

fn unknown_type(kind: &str, pointer: &str) -> Fault {
    let kind: String = kind.chars().take(40).collect();
    let message = format!(
        "is {kind:?}, which the provider would run itself; send tools of type function or custom"
    );
    Fault::new(format!("{pointer}/type"), message)
}

fn own_tool(tool: &Value) -> Value {
    let members = tool.as_object().into_iter().flatten();
    let members = members.filter(|(name, _)| OF_TOOL.contains(&name.as_str()));
    members
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect::<JsonObject>()
        .into()
}

fn plain(name: &str, tool: &Value) -> Value {
    let mut function = json!({"name": name});
    for member in ["description", "parameters"] {
        if !tool[member].is_null() {
            function[member] = tool[member].clone();
        }
    }
    // Absent means false. Some servers reject the member.
    if tool["strict"] == true {
        function["strict"] = json!(true);
    }
    json!({"type": "function", "function": function})
}

/// Converts a custom tool to a function with one text argument.
fn custom(name: &str, tool: &Value) -> Value {
    let text = tool["description"].as_str().unwrap_or_default();
    let format = &tool["format"];
    let mut description = text.to_owned();
    let mut input = "The input of the tool, as plain text.".to_owned();
    if format["type"] == "grammar" {
        let syntax = format["syntax"].as_str().unwrap_or("lark");
        let definition = format["definition"].as_str().unwrap_or_default();
        input =
            format!("The input of the tool, as text of the {syntax} grammar in its description.");
        description =
            format!("{description}\n\nThe input follows this {syntax} grammar:\n{definition}");
    }
    json!({"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": {INPUT: {"type": "string", "description": input}},
        "required": [INPUT], "additionalProperties": false}}})
}

/// Returns the arguments of a custom tool's function.
pub(super) fn custom_arguments(input: &str) -> String {
    json!({INPUT: input}).to_string()
}

/// Extracts the input of a custom tool from the model's arguments.
pub(super) fn custom_input(arguments: &str) -> String {
    match serde_json::from_str(arguments) {
        Ok(Value::Object(members)) => {
            // A model may ignore the schema and use another name.
            let single = members.values().next().filter(|_| members.len() == 1);
            let input = members.get(INPUT).or(single).and_then(Value::as_str);
            input.unwrap_or(arguments).to_owned()
        }
        // Some models send the input itself as JSON text.
        Ok(Value::String(input)) => input,
        // Invalid JSON is the input itself: a grammar may demand any text.
        _ => arguments.to_owned(),
    }
}

/// Converts the tool choice for a completion and removes the tools that it excludes. Pointers of faults refer to
/// the request.
pub(super) fn read_choice(
    choice: &Value,
    functions: &mut Vec<Value>,
) -> Result<Option<Value>, Fault> {
    let fault = || {
        let message = "must be auto, none, required, or an object of type function, custom or allowed_tools \
            with names of tools of this request";
        Fault::new("/tool_choice", message)
    };
    match choice {
        Value::Null => Ok(None),
        Value::String(word) if ["auto", "none", "required"].contains(&word.as_str()) => {
            Ok(Some(choice.clone()))
        }
        Value::Object(_) => match choice["type"].as_str() {
            Some("function" | "custom") => {
                // A choice of a missing tool would be an error of the provider without a pointer.
                let name = chosen(choice).filter(|name| is_offered(functions, name));
                let name = name.ok_or_else(fault)?;
                Ok(Some(
                    json!({"type": "function", "function": {"name": name}}),
                ))
            }
            Some("allowed_tools") => {
                let allowed = choice["tools"].as_array().ok_or_else(fault)?;
                let names: Option<Vec<_>> = allowed.iter().map(chosen).collect();
                let names = names.ok_or_else(fault)?;
                // One unknown name rejects the list: it may be mistyped.
                if !names.iter().all(|name| is_offered(functions, name)) {
                    return Err(fault());
                }
                // Completions cannot restrict the choice, so the other tools are removed.
                functions.retain(|function| {
                    names
                        .iter()
                        .any(|name| function["function"]["name"] == name.as_str())
                });
                let mode = choice["mode"].as_str().unwrap_or("auto");
                let is_valid = ["auto", "required"].contains(&mode);
                is_valid.then(|| Some(json!(mode))).ok_or_else(fault)
            }
            _ => Err(fault()),
        },
        _ => Err(fault()),
    }
}

fn chosen(choice: &Value) -> Option<String> {
    let namespace = choice["namespace"].as_str();
    Some(function_name(namespace, choice["name"].as_str()?))
}

fn is_offered(functions: &[Value], name: &str) -> bool {
    functions
        .iter()
        .any(|function| function["function"]["name"] == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tools: Value) -> Result<RequestTools, Fault> {
        let body = JsonObject::from_iter([("tools".to_owned(), tools)]);
        read_tools(&body, &mut PointerMap::default())
    }

    #[test]
    fn functions_keep_name_schema_and_strictness() {
        let parameters = json!({"type": "object"});
        let tools = read(json!([
            {"type": "function", "name": "f", "description": "d", "parameters": parameters, "strict": true},
            {"type": "function", "name": "g", "parameters": null, "strict": false, "unknown": 1},
        ]))
        .unwrap();
        assert_eq!(
            Value::Array(tools.functions),
            json!([{"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters, "strict": true}},
                {"type": "function", "function": {"name": "g"}}])
        );
        assert!(tools.own[1].get("unknown").is_none());
        assert!(!tools.names.tool("f").is_custom);
    }

    #[test]
    fn converts_custom_tools_to_single_text_functions() {
        let tool = json!({"type": "custom", "name": "apply_patch", "description": "Patches.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}});
        let tools = read(json!([tool])).unwrap();
        let function = &tools.functions[0]["function"];
        assert_eq!(function["parameters"]["required"], json!(["input"]));
        let description = function["description"].as_str().unwrap();
        assert!(
            description.contains("lark grammar:\nstart: \"x\""),
            "{description}"
        );
        assert!(tools.names.tool("apply_patch").is_custom);
        assert_eq!(tools.own[0], tool);
        for (arguments, input) in [
            (custom_arguments("*** Begin\n\"x\""), "*** Begin\n\"x\""),
            (r#"{"patch": "p"}"#.to_owned(), "p"),
            (r#""p""#.to_owned(), "p"),
            ("*** Begin".to_owned(), "*** Begin"),
            (r#"{"a": 1, "b": 2}"#.to_owned(), r#"{"a": 1, "b": 2}"#),
        ] {
            assert_eq!(custom_input(&arguments), input);
        }
    }

    #[test]
    fn namespaces_are_flattened_and_restored() {
        let inner = json!({"type": "function", "name": "close"});
        let tools = read(
            json!([{"type": "namespace", "name": "agents", "description": "d", "tools": [inner]},
            {"type": "function", "name": "close"}]),
        )
        .unwrap();
        let names: Vec<_> = tools
            .functions
            .iter()
            .map(|one| &one["function"]["name"])
            .collect();
        assert_eq!(names, ["agents__close", "close"]);
        let tool = tools.names.tool("agents__close");
        assert_eq!(
            (tool.namespace.as_deref(), tool.name.as_str()),
            (Some("agents"), "close")
        );
        assert_eq!(function_name(Some("mcp__x__"), "y"), "mcp__x__y");
        let long = function_name(Some(&"n".repeat(60)), &"m".repeat(60));
        assert_eq!(long.len(), 64);
        assert_ne!(long, function_name(Some(&"n".repeat(60)), &"m".repeat(61)));
    }

    #[test]
    fn tools_of_items_count_like_those_of_the_request() {
        let exec = json!({"type": "custom", "name": "exec", "format": {"type": "text"}});
        let space = json!({"type": "namespace", "name": "functions", "tools": [exec]});
        let item =
            |tools: Value| json!({"type": "additional_tools", "role": "developer", "tools": tools});
        let newer = json!({"type": "function", "name": "f", "description": "newer"});
        let body = json!({"tools": [{"type": "function", "name": "f"}],
            "input": [item(json!([space])), {"role": "user", "content": "x"}, item(json!([space, newer]))]});
        let mut pointers = PointerMap::default();
        let tools = read_tools(body.as_object().unwrap(), &mut pointers).unwrap();
        let functions: Vec<_> = tools
            .functions
            .iter()
            .map(|tool| &tool["function"])
            .collect();
        assert_eq!(functions[0]["description"], "newer");
        assert_eq!(functions[1]["name"], "functions__exec");
        assert_eq!(functions.len(), 2);
        assert_eq!(pointers.of("/tools/1"), "/input/0/tools/0/tools/0");
        let tool = tools.names.tool("functions__exec");
        assert_eq!((tool.is_custom, tool.name.as_str()), (true, "exec"));
        assert_eq!(tools.own_of_items[&2][1], newer);
        let refused = |tool: Value| {
            let body = json!({"input": [item(json!([tool]))]});
            read_tools(body.as_object().unwrap(), &mut PointerMap::default()).unwrap_err()
        };
        let refused = refused(json!({"type": "web_search"}));
        assert_eq!(refused.pointer, "/input/0/tools/0/type");
    }

    #[test]
    fn rejects_provider_tools_by_name() {
        for kind in [
            "web_search",
            "mcp",
            "code_interpreter",
            "local_shell",
            "tool_search",
        ] {
            let refused =
                read(json!([{"type": "function", "name": "f"}, {"type": kind}])).unwrap_err();
            assert_eq!(refused.pointer, "/tools/1/type");
            assert!(refused.message.contains(kind), "{}", refused.message);
        }
        for (tools, pointer) in [
            (json!({}), "/tools"),
            (json!(["web_search"]), "/tools/0/type"),
            (json!([{"type": "function"}]), "/tools/0/name"),
            (
                json!([{"type": "function", "name": "f"}, {"type": "custom", "name": "f"}]),
                "/tools/1/name",
            ),
            (
                json!([{"type": "namespace", "name": "n"}]),
                "/tools/0/tools",
            ),
            (
                json!([{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]),
                "/tools/0/tools/0/type",
            ),
        ] {
            assert_eq!(read(tools).unwrap_err().pointer, pointer);
        }
    }

    #[test]
    fn accepts_tool_choice_only_for_offered_tools() {
        let offered = || {
            let tools = json!([{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]);
            read(tools).unwrap().functions
        };
        let function = |name: &str| json!({"type": "function", "function": {"name": name}});
        for (choice, expected) in [
            (json!("required"), json!("required")),
            (json!({"type": "function", "name": "f"}), function("f")),
            (json!({"type": "custom", "name": "c"}), function("c")),
        ] {
            assert_eq!(
                read_choice(&choice, &mut offered()).unwrap(),
                Some(expected)
            );
        }
        let mut left = offered();
        let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "c"}]});
        assert_eq!(
            read_choice(&allowed, &mut left).unwrap(),
            Some(json!("required"))
        );
        assert_eq!(left.len(), 1);
        for choice in [
            json!("sometimes"),
            json!(7),
            json!({"type": "function", "name": "absent"}),
            json!({"type": "web_search"}),
            json!({"type": "allowed_tools", "tools": [{"name": "absent"}]}),
        ] {
            assert!(read_choice(&choice, &mut offered()).is_err(), "{choice}");
        }
    }
}
