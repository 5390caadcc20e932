"""Four sites, every night, from cron: no worker, no server. What fails is kept; what may heal comes back tomorrow."""

import sys

import redrive

rd = redrive.Redrive("sites.db")
SITES = {"garden": 3, "bridge": 0, "harbour": 5, "market": 2}  # site: new articles


def publish(site: str, articles: int) -> str:
    if site == "bridge":
        raise TimeoutError("bridge.example does not answer")
    if site == "market":
        raise TypeError("the template has no title")
    return f"{articles} articles on {site}"


def main() -> int:
    with rd.cycle("nightly") as night:
        for site, articles in SITES.items():
            result = night.run(publish, site, articles, job_id=site)
            print(f"{site}: {result.value or result.error}")
    return night.exit_code


if __name__ == "__main__":
    sys.exit(main())
