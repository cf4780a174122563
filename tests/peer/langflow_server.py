"""A Langflow server with one flow that answers with the message. Its first line of output names its address, an API key
and the flow's id."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PR_SET_PDEATHSIG = 1


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def call(method, url, body=None, headers=()):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **dict(headers)}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def wait_for(url):
    while True:
        try:
            return call("GET", f"{url}/health")
        except (urllib.error.URLError, OSError, ValueError):
            time.sleep(0.2)


def echo_flow():
    from lfx.components.input_output import ChatInput, ChatOutput
    from lfx.graph import Graph

    chat_input = ChatInput(_id="in")
    return Graph(chat_input, ChatOutput(_id="out").set(input_value=chat_input.message_response)).dump(name="echo")


def main():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as directory:
        variables = {"LANGFLOW_CONFIG_DIR": directory, "LANGFLOW_AUTO_LOGIN": "true", "DO_NOT_TRACK": "true"}
        server = subprocess.Popen(
            [sys.executable, "-m", "langflow", "run", "--backend-only", "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **variables},
            preexec_fn=end_with_parent,
        )
        flow = echo_flow()
        wait_for(url)
        token = call("GET", f"{url}/api/v1/auto_login")["access_token"]
        made = call("POST", f"{url}/api/v1/api_key/", {"name": "test"}, {"authorization": f"Bearer {token}"})
        key = made["api_key"]
        flow = call("POST", f"{url}/api/v1/flows/", flow, {"x-api-key": key})["id"]
        print(f"listening on {url} {key} {flow}", flush=True)
        server.wait()


if __name__ == "__main__":
    main()
