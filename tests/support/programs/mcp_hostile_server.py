"""An MCP server that does what no server should: run by itself, over stdin and stdout.

It speaks the protocol by hand, so that it can break it. Its tools are the methods of `Tools`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SCHEMAS = {
    "echo": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What to say."},
            "times": {"type": "integer", "default": 1},
        },
        "required": ["text"],
    },
    "die": {"type": "object", "properties": {"code": {"type": "integer"}}, "required": ["code"]},
    "flood": {"type": "object", "properties": {"lines": {"type": "integer"}}},
    "huge": {"type": "object", "properties": {"size": {"type": "integer"}}},
    "ask": {"type": "object", "properties": {"method": {"type": "string"}}},
    "odd-schema": {
        "type": "object",
        "properties": {"file-path": {"type": "nonsense"}, "class": {"$ref": "#/nowhere"}},
        "required": ["file-path"],
        "oneOf": [{}],
    },
    "no-schema": "none",
}
OUTPUTS = {
    "wrapped": {"type": "object", "properties": {"result": {"type": "integer"}}},
    "data": {"type": "object", "properties": {"deep": {"type": "object"}}},
    "lying": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
}
PICTURE = {"type": "image", "mimeType": "image/png", "data": "aGk="}


def text(content):
    return {"content": [{"type": "text", "text": content}]}


class Tools:
    """Each gets the arguments, and returns a result or sends one itself."""

    def __init__(self, server):
        self.server = server

    def echo(self, text="", times=1, **more):
        return globals()["text"](text * times + "".join(f" {key}={more[key]!r}" for key in more))

    def die(self, code):
        print(f"dying with {code}", file=sys.stderr, flush=True)
        os._exit(code)

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self):
        return None

    def close_stdout(self):
        os.close(1)
        return

    def flood(self, lines):
        for number in range(lines):
            self.server.write(f"debug: {number} {{ [")
        self.server.write('{"jsonrpc": "2.0"}')
        self.server.write('{"jsonrpc": "2.0", "id": 987654, "result": {}}')
        self.server.write("\ufffd" * 100)
        return text("still here")

    def huge(self, size):
        return text("x" * size)

    def endless(self):
        os.write(1, b"x" * (1 << 20))
        while True:
            os.write(1, b"x" * (1 << 16))

    def wrapped(self):
        return {"content": [], "structuredContent": {"result": 5}}

    def data(self):
        content = {"deep": {"list": [1, None, {"a": 1.5}], "none": None}}
        return {**text("as text"), "structuredContent": content}

    def lying(self):
        return {**text("as text"), "structuredContent": {"n": "no number"}}

    def texts(self):
        return {"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}

    def nothing(self):
        return {"content": []}

    def picture(self):
        return {"content": [PICTURE]}

    def mixed(self):
        inside = {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "held"}
        raw = {"uri": "file:///b.bin", "mimeType": "application/x", "blob": "aGk="}
        return {
            "content": [
                {"type": "text", "text": "look:"},
                {"type": "resource", "resource": inside},
                {"type": "resource", "resource": raw},
                {"type": "resource_link", "uri": "file:///c", "name": "c"},
            ]
        }

    def fail(self):
        return {**text("the disk is full"), "isError": True}

    def refuse(self):
        return {"error": {"code": -32000, "message": "not today", "data": {"why": "Sunday"}}}

    def nonsense(self):
        return {"content": "no list", "isError": 3}

    def env(self):
        return {
            "content": [],
            "structuredContent": {"env": dict(os.environ), "cwd": str(Path.cwd())},
        }

    def pid(self):
        return text(str(os.getpid()))

    def chatter(self):
        for number in range(50):
            content = {"level": "info", "data": number}
            self.server.notify("notifications/message", content)
            self.server.notify("notifications/progress", {"progressToken": 9, "progress": number})
        self.server.notify("notifications/message", "not an object")
        self.server.notify("notifications/made/up", {})
        return text("quiet again")

    def ask(self, method):
        params = {}
        if method == "sampling/createMessage":
            message = {"role": "user", "content": {"type": "text", "text": "think for me"}}
            params = {"messages": [message], "maxTokens": 5}
        if method == "elicitation/create":
            params = {"message": "who?", "requestedSchema": {"type": "object", "properties": {}}}
        answer = self.server.request(method, params)
        return text("refused" if "error" in answer else f"granted: {answer}")

    def learn(self):
        self.server.extra.append("learnt")
        self.server.notify("notifications/tools/list_changed")
        return text("learnt one")

    def learnt(self):
        return text("new")


class Server:
    def __init__(self, options):
        self.options = options
        self.extra = []
        self.tools = Tools(self)

    def write(self, line):
        data = line.encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]

    def send(self, **message):
        self.write(json.dumps({"jsonrpc": "2.0", **message}))

    def notify(self, method, params=None):
        self.send(method=method, **({} if params is None else {"params": params}))

    def request(self, method, params):
        self.send(id="mine", method=method, params=params)
        while True:
            message = json.loads(sys.stdin.readline())
            if message.get("id") == "mine":
                return message

    def listed(self):
        names = [*self.options.tools, *self.extra]
        return [
            {
                "name": name,
                "description": f"The tool {name}.",
                "inputSchema": SCHEMAS.get(name, {"type": "object"}),
                **({"outputSchema": OUTPUTS[name]} if name in OUTPUTS else {}),
            }
            for name in names
        ]

    def list(self, params):
        tools, page = self.listed(), self.options.page
        if self.options.endless_pages:
            return {"tools": [], "nextCursor": "again"}
        if page is None:
            return {"tools": tools}
        at = int(params.get("cursor") or 0)
        more = {"nextCursor": str(at + page)} if at + page < len(tools) else {}
        return {"tools": tools[at : at + page], **more}

    def call(self, params):
        name = params["name"]
        method = {"odd-schema": "echo", "read-file": "echo"}.get(name, name.replace("-", "_"))
        method = method if hasattr(self.tools, method) else "echo"
        return getattr(self.tools, method)(**(params.get("arguments") or {}))

    def answer(self, message):
        method, params = message.get("method"), message.get("params") or {}
        if method == "initialize":
            if self.options.mute:
                return None
            return {
                "protocolVersion": self.options.revision or params["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "hostile", "version": "0"},
            }
        if method == "tools/list":
            return self.list(params)
        if method == "tools/call":
            return self.call(params)
        return {"error": {"code": -32601, "message": f"Method not found: {method}"}}

    def serve(self):
        for line in sys.stdin:
            message = json.loads(line)
            if self.options.prim and message["method"] != "initialize":
                sys.exit(f"expected initialize, not {message['method']}")
            self.options.prim = False
            if "id" not in message or "method" not in message:
                continue
            answer = self.answer(message)
            if answer is not None:
                kind = answer if "error" in answer else {"result": answer}
                self.send(id=message["id"], **kind)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tools", nargs="*", default=["echo"])
    parser.add_argument("--mute", action="store_true", help="never answer `initialize`")
    parser.add_argument("--prim", action="store_true", help="exit unless that comes first")
    parser.add_argument("--page", type=int)
    parser.add_argument("--endless-pages", action="store_true")
    parser.add_argument("--revision")
    parser.add_argument("--exit", type=int, help="exit before saying anything")
    parser.add_argument("--wait-for", help="a pipe that opens when it may start")
    parser.add_argument("--stubborn", action="store_true", help="go on after the end, and SIGTERM")
    parser.add_argument("--child", help="start one that is stubborn too, and write both pids here")
    parser.add_argument("--note", help="a file that gets a line at every start")
    options = parser.parse_args()
    if options.note:
        with Path(options.note).open("a") as file:
            file.write(f"{os.getpid()}\n")
    if options.exit is not None:
        print("there is no licence", file=sys.stderr)
        sys.exit(options.exit)
    if options.stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.child:
        quiet = (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        )
        child = subprocess.Popen([sys.executable, "-c", quiet], start_new_session=True)
        with Path(options.child).open("w") as file:
            file.write(f"{os.getpid()} {child.pid}")
    if options.wait_for:
        Path(options.wait_for).read_text()
    Server(options).serve()
    while options.stubborn:
        time.sleep(600)


if __name__ == "__main__":
    main()
