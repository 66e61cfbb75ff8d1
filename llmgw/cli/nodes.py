"""`llmgw nodes`"""

import time

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json


def nodes(state: State = None, admin: Admin = None, output: Output = OutputFormat.TABLE, as_json: Json = False) -> None:
    """List the machines: memory, disk, accelerators, engines.

    \b
    Example:
      llmgw nodes
      llmgw nodes --json | jq '.nodes[] | {name, memory_available, disk_free}'
    """
    from llmgw.admin.shapes import NodesOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line, print_table
    from llmgw.cli.rows import DEVICE_HEADERS, ENGINE_HEADERS, NODE_HEADERS, device_cells, engine_cells, node_cells

    answer = connect(state_root(state), admin).get("nodes", NodesOutput)
    if wants_json(output, as_json):
        print_json(answer)
    elif not answer.nodes:
        print_line("no node has reported yet")
    else:
        print_table(NODE_HEADERS, [node_cells(row, time.time()) for row in answer.nodes])
        devices = [device_cells(node, device) for node in answer.nodes for device in node.devices]
        if devices:
            print_line("")
            print_table(DEVICE_HEADERS, devices)
        engines = [engine_cells(node, engine) for node in answer.nodes for engine in node.engines]
        if engines:
            print_line("")
            print_table(ENGINE_HEADERS, engines)
