service {
  name = "api"
  id   = "api-2"
  port = 9080
  tags = ["version=v1"]
  meta = { protocol = "http" }

  check {
    http     = "http://127.0.0.1:18093/healthz"
    interval = "1s"
  }
}
