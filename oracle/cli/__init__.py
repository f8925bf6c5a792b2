"""The command of exact optima and bounds."""

from topas.cli.command import Command

COMMANDS = {"oracle": Command("oracle.cli.oracle", "exact optima and bounds", "oracle")}
