service {
  name = "api"
  id   = "api-3"
  port = 9080
  tags = ["version=v2"]
  meta = { protocol = "http" }

  check {
    http     = "http://127.0.0.1:18094/healthz"
    interval = "1s"
  }
}
