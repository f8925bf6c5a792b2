"""The commands that make traces."""

from topas.cli.command import Command

COMMANDS = {
    "import": Command("traces.cli.import_", "turn recorded sessions into a trace"),
    "workload": Command("traces.cli.workload", "write the trace of a named workload"),
}
