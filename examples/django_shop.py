"""Django: a view saves an order and enqueues its confirmation in one transaction; a worker sends it."""

import django
from django.conf import settings
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.test import RequestFactory

import redrive

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}})
django.setup()
rd = redrive.Redrive("jobs.db", inbox="sqlite:///shop.db")


class Order(models.Model):
    number = models.IntegerField()

    class Meta:
        app_label = "shop"


@rd.task
def confirm(number: int) -> str:
    return f"order {number} is confirmed, {Order.objects.count()} in all"


def buy(request: HttpRequest, number: int) -> JsonResponse:
    with transaction.atomic():
        Order.objects.create(number=number)
        job = confirm.options(within=connection).blocking.enqueue(number)
    return JsonResponse({"job": job.id}, status=202)


def main() -> None:
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    answer = buy(RequestFactory().post("/orders/7"), 7)
    with rd.blocking() as queue:
        queue.drain()
        (job,) = queue.run(rd.jobs.list(task="confirm")).jobs
        print(answer.status_code, job.state, queue.run(rd.jobs.result(job.id)))


if __name__ == "__main__":
    main()
