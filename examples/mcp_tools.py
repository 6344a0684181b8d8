"""Tools for code to call: the file tools of `create_mcp_environment`, and functions of your own.

`create_mcp_environment({"mcpServers": {…}})` gives code the tools of MCP servers instead.
"""

from envweave import CodeAction, create_mcp_environment

PRICES = {"apple": 0.5, "pear": 0.75}


def price_of(fruit: str) -> float:
    """Look up a price; this runs here, and not where the code runs."""
    return PRICES[fruit]


env = create_mcp_environment(tools=[price_of])
print("tools:", ", ".join(env.reset().available_tools))

observation = env.step(
    CodeAction(
        code="""
total = 3 * price_of("apple") + price_of("pear")
file_write("/tmp/bill.txt", f"total: {total}")
print(file_read("/tmp/bill.txt"))
"""
    )
)
print(observation.stdout, end="")
for call in observation.execution_result.tool_calls:
    print("called:", call.name)

# What fails in a tool is an exception in the code.
print(env.step(CodeAction(code="price_of('plum')")).stderr.splitlines()[-1])
env.close()
