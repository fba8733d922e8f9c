package gateways

// question is a command line of curl, or a line to send to a port, and what has to be in the answer. A
// question without an answer has to fail with that text.
type question struct{ ask, answer, fails string }

// page is a file of the folder pages, which replaces the one before. What people do besides is done first.
type page struct {
	file string
	do   func(l *lab) // or nil
	asks []question
}

func pages() []page {
	return append(ingressPages(), egressPages()...)
}

func ingressPages() []page {
	return []page{
		{"01-ingress.yaml", nil, []question{
			{"outside: -I -H 'Host: httpbin.example.com' http://INGRESS/status/200", "200 OK", ""},
			{"outside: -I -H 'Host: httpbin.example.com' http://INGRESS/headers", "404 Not Found", ""},
			{"outside: -I http://INGRESS/status/200", "404 Not Found", ""},
		}},
		{"02-ingress-any-host.yaml", nil, []question{{"outside: http://INGRESS/headers", "httpbin INGRESS", ""}}},
		{"03-secure-ingress.yaml", func(l *lab) { l.put(l.keys, "httpbin-credential", "httpbin.example.com", nil) }, []question{
			{"outside: --cacert ca.pem --resolve httpbin.example.com:443:INGRESS -i https://httpbin.example.com/status/418", "HTTP/2 418", ""},
		}},
		{"03-secure-ingress.yaml", func(l *lab) { l.put(l.others, "httpbin-credential", "httpbin.example.com", nil) }, []question{
			{"outside: --cacert others.pem --resolve httpbin.example.com:443:INGRESS -i https://httpbin.example.com/status/418", "HTTP/2 418", ""},
			{"outside: --cacert ca.pem --resolve httpbin.example.com:443:INGRESS https://httpbin.example.com/status/418", "", "certificate"},
		}},
		{"04-secure-ingress-hosts.yaml", func(l *lab) {
			l.put(l.keys, "httpbin-credential", "httpbin.example.com", nil)
			l.put(l.keys, "helloworld-credential", "helloworld-v1.example.com", nil)
		}, []question{
			{"outside: --cacert ca.pem --resolve helloworld-v1.example.com:443:INGRESS https://helloworld-v1.example.com/hello", "helloworld ", ""},
			{"outside: --cacert ca.pem --resolve httpbin.example.com:443:INGRESS -i https://httpbin.example.com/status/418", "HTTP/2 418", ""},
		}},
		{"05-secure-ingress-mutual.yaml", func(l *lab) {
			l.put(l.keys, "httpbin-credential", "httpbin.example.com", map[string]string{"ca.crt": l.keys.RootPEM()})
		}, []question{
			{"outside: --cacert ca.pem --cert client.pem --resolve httpbin.example.com:443:INGRESS -i https://httpbin.example.com/status/418", "HTTP/2 418", ""},
			{"outside: --cacert ca.pem --resolve httpbin.example.com:443:INGRESS https://httpbin.example.com/status/418", "", "certificate required"},
		}},
		{"06-passthrough.yaml", nil, []question{
			{"outside: --cacert ca.pem --resolve nginx.example.com:443:INGRESS https://nginx.example.com/", "nginx nginx.example.com", ""},
		}},
		{"07-https-redirect.yaml", nil, []question{
			{"outside: -I -H 'Host: httpbin.example.com' http://INGRESS/status/200", "location: https://httpbin.example.com/status/200", ""},
			{"outside: --cacert ca.pem --resolve httpbin.example.com:443:INGRESS -i https://httpbin.example.com/status/418", "HTTP/2 418", ""},
		}},
		{"08-tcp.yaml", nil, []question{{"outside: tcp 31400 20", "20 one, 0 two", ""}}},
		{"09-tcp-shifting.yaml", nil, []question{{"outside: tcp 31400 100", "both", ""}}},
	}
}

func egressPages() []page {
	return []page{
		{"10-egress.yaml", nil, []question{
			{"client: -i http://edition.cnn.com/politics", "301 Moved Permanently", ""},
			{"egress: outbound|80||edition.cnn.com", "requests: 1", ""},
		}},
		{"11-egress-passthrough.yaml", nil, []question{
			{"client: --cacert ca.pem https://edition.cnn.com/politics", "cnn edition.cnn.com called by nobody", ""},
			{"egress: outbound|443||edition.cnn.com", "cx_total: 1", ""},
		}},
		{"12-egress-tls-origination.yaml", nil, []question{
			{"client: http://edition.cnn.com/politics", "cnn edition.cnn.com called by nobody", ""},
			{"egress: outbound|443||edition.cnn.com", "requests: 1", ""},
		}},
		{"13-egress-mtls-origination.yaml", func(l *lab) {
			l.put(l.keys, "client-credential", "client.example.com", map[string]string{"ca.crt": l.keys.RootPEM()})
		}, []question{
			{"client: http://my-nginx.mesh-external.svc.cluster.local/", "external my-nginx.mesh-external.svc.cluster.local called by client.example.com", ""},
			{"egress: outbound|443||my-nginx.mesh-external.svc.cluster.local", "requests: 1", ""},
		}},
	}
}
