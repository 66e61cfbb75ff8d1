"""`llmgw replicas`"""

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json


def replicas(
    state: State = None, admin: Admin = None, output: Output = OutputFormat.TABLE, as_json: Json = False
) -> None:
    """List the engine processes, wanted or running. BUSY: requests running + waiting.

    \b
    Example:
      llmgw replicas
      llmgw replicas --json | jq -r '.replicas[] | [.model, .pid, .url] | @tsv'
    """
    from llmgw.admin.shapes import ReplicasOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line, print_table
    from llmgw.cli.rows import REPLICA_HEADERS, replica_cells

    answer = connect(state_root(state), admin).get("replicas", ReplicasOutput)
    if wants_json(output, as_json):
        print_json(answer)
    elif not answer.replicas:
        print_line("no engine runs or is wanted")
    else:
        print_table(REPLICA_HEADERS, [replica_cells(row) for row in answer.replicas])
