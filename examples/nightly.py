"""A nightly script without a server: what fails is diverted and sorted by its nature, and nothing is done twice.

cron starts it once a night, and the cycle's id is the date; here two nights pass in one run.
"""

import redrive


class RateLimited(Exception):
    status_code = 429


rd = redrive.Redrive("nightly.db")
posted: list[str] = []
errors: dict[str, Exception] = {
    "blog": TimeoutError("the CMS is slow"),  # heals at once: tried again on the spot
    "news": RateLimited("too many posts today"),  # heals later: comes back in the next cycle
    "shop": redrive.InvalidInput(field="price", problem="is no number"),  # does not heal: a person must look
}


def post(ctx: redrive.BlockingContext, site: str) -> None:
    if site in errors:
        raise errors.pop(site)
    ctx.once("post", lambda key: posted.append(site))


def run(cycle_id: str, *sites: str) -> int:
    with rd.cycle("sites", cycle_id) as night:
        for site in sites:
            night.run(post, site=site, job_id=site)
    return night.exit_code


def main() -> None:
    codes = [run("night 1", "home", "blog", "news", "shop")]
    codes += [run("night 1", "home", "blog", "news", "shop")]  # started again: nothing runs twice
    codes += [run("night 2", "news")]
    print("posted:", *posted, "| exit codes:", *codes)


if __name__ == "__main__":
    main()
