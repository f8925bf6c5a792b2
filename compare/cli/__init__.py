"""Commands that run policies side by side, measure how far they are from the optimum, ask real servers."""

from topas.cli.command import Command

COMMANDS = {
    "compare": Command(
        "compare.cli.compare", "run policies side by side: CSV, Parquet, Markdown, figure", "compare"
    ),
    "gap": Command(
        "compare.cli.gap", "decisions against exact optima, traces against lower bounds", "compare,oracle"
    ),
    "profile": Command(
        "compare.cli.profile", "measure a live server into an engine profile", "serving,compare"
    ),
    "replay": Command(
        "compare.cli.replay", "play a trace against a live server and measure completion times", "serving"
    ),
    "tune": Command(
        "compare.cli.tune",
        "tune the parameters of a policy on traces; writes the file that simulator and server read",
        "tune",
    ),
}
