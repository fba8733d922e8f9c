service {
  name = "stock"
  port = 9090
  meta = { protocol = "grpc" }

  check {
    tcp      = "127.0.0.1:18095"
    interval = "1s"
  }
}
