"""``framegate demo --telemetry``: a collector, Prometheus and the dashboards, over a framegate in calm and in six troubles.

run          the whole of it; ``run`` is what the command calls
tools        where the programs are that it uses
scene        what is started: two framegates, a collector, Prometheus
load         the traffic of Kafka's clients beside the generator's
troubles     what goes wrong, one after another, and the words in which the first dashboard must say so
small_disk   a disk that can be filled
prometheus   questions to Prometheus
panels       the dashboards' panels: their queries asked, what they say kept
series       the same series by way of the collector and by a scrape, compared
pictures     a dashboard as PNG
matrix       panels by troubles, as JSON and Markdown
"""
