service {
  name = "api"
  id   = "api-1"
  port = 9080
  tags = ["version=v1"]
  meta = { protocol = "http" }

  check {
    http     = "http://127.0.0.1:18092/healthz"
    interval = "1s"
  }
}
