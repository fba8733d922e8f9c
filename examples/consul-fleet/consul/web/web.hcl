service {
  name = "web"
  port = 8080
  meta = { protocol = "http" }

  check {
    http     = "http://127.0.0.1:18091/healthz"
    interval = "1s"
  }
}
