"""A LangGraph server (`langgraph dev`) with one graph. Its first line of output names its address.

The graph `agent` answers with the number of messages and the last one; `ask` interrupts it with two choices.
"""

import os
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request

from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt



def answer(state):
    messages = state["messages"]
    text = messages[-1].text
    if text == "ask":
        chosen = interrupt({"question": "Which way?", "options": ["left", "right"]})
        return {"messages": [AIMessage(f"chosen: {chosen}")]}
    return {"messages": [AIMessage(f"{len(messages)} messages: {text}")]}


builder = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_edge(START, "answer")
builder.add_edge("answer", END)
graph = builder.compile()


def tell(url, output):
    """Prints the address as soon as the server answers."""
    while True:
        try:
            urllib.request.urlopen(f"{url}/ok", timeout=5).read()
            break
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    print(f"listening on {url}", file=output, flush=True)


def main():
    from langgraph_api.cli import run_server

    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = os.path.abspath(__file__)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        threading.Thread(target=tell, args=(f"http://127.0.0.1:{port}", output), daemon=True).start()
        run_server(
            host="127.0.0.1", port=port, reload=False, open_browser=False, graphs={"agent": f"{file}:graph"}, env={}
        )


if __name__ == "__main__":
    main()
