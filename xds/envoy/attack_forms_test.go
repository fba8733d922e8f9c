package envoy_test

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// attackAsk is a request in the words of policies.
type attackAsk struct {
	method, path, host string
	// header is a line of a header, or empty.
	header string
	// peer is the identity of the client without its scheme; empty means plaintext.
	peer string
	// token is a token, or empty.
	token string
}

// attack is a way to write a request. Every request in it has the header x-attack with the
// attack's id, so that what the application gets is known again.
type attack struct {
	name string
	// shown is how the page shows it; empty means that the page does not.
	shown string
	// by is who sends it.
	by attackAsk
	// wire is text of HTTP/1; or fields are headers of HTTP/2, and body what follows.
	wire   string
	fields []hpack.HeaderField
	body   string
	// alone means that it has a connection of its own, and that a plain request follows on it.
	alone bool
	// untrusted means that TLS may refuse the client.
	untrusted bool
	// path means that it depends on how paths are normalized.
	path bool
}

// attackID stands for the id of an attack in its text.
const attackID = "@@ID@@@@"

// wire is the request as a client writes it.
func (a attackAsk) wire(target string, lines ...string) string {
	return a.method + " " + target + " HTTP/1.1\r\n" + a.lines(lines...) + "\r\n"
}

func (a attackAsk) lines(more ...string) string {
	lines := append([]string{"host: " + a.host, "x-attack: " + attackID}, more...)
	if a.token != "" {
		lines = append(lines, "authorization: Bearer "+a.token)
	}
	if a.header != "" {
		lines = append(lines, a.header)
	}
	return strings.Join(lines, "\r\n") + "\r\n"
}

// fields is the request in HTTP/2.
func (a attackAsk) fields(target string, more ...string) []hpack.HeaderField {
	out := fieldsOf(":method", a.method, ":scheme", "http", ":authority", a.host, ":path", target, "x-attack", attackID)
	if a.token != "" {
		out = append(out, hpack.HeaderField{Name: "authorization", Value: "Bearer " + a.token})
	}
	if name, value, ok := strings.Cut(a.header, ": "); ok {
		out = append(out, hpack.HeaderField{Name: name, Value: value})
	}
	return append(out, fieldsOf(more...)...)
}

func fieldsOf(pairs ...string) []hpack.HeaderField {
	var out []hpack.HeaderField
	for p := range slices.Chunk(pairs, 2) {
		out = append(out, hpack.HeaderField{Name: p[0], Value: p[1]})
	}
	return out
}

// pathAttacks write the path of a request that is refused so that it looks like another one.
// allowed is a request that differs in its path only.
func pathAttacks(refused, allowed attackAsk) []attack {
	p, rest, other := refused.path, strings.TrimPrefix(refused.path, "/"), allowed.path
	first, tail := rest, ""
	if rest != "" {
		first, tail = rest[:1], rest[1:]
	}
	up := strings.Repeat("/..", strings.Count(other, "/"))
	encoded := func(s string) string { return fmt.Sprintf("%%%x", s) }
	if first == "" {
		encoded = func(string) string { return "" }
	}
	last := strings.LastIndex(p, "/")
	var out []attack
	add := func(shown bool, targets ...string) {
		for _, target := range targets {
			x := attack{name: "path " + target, by: refused, wire: refused.wire(target), path: true, alone: strings.ContainsAny(target, " \t\r\n\x00")}
			if shown {
				x.shown = target
			}
			out = append(out, x)
			// Paths mean the same in HTTP/2. What HTTP/2 refuses by itself is below.
			if shown && strings.HasPrefix(target, "/") {
				out = append(out, attack{name: "h2 path " + target, by: refused, fields: refused.fields(target), path: true})
			}
		}
	}
	add(true, p, p+"?a=b", "http://"+refused.host+p,
		"/."+p, "/x/.."+p, "/%2e/"+rest, "/x/%2E%2e/"+rest, "/"+encoded(first)+tail, `/x\..\`+rest,
		"/"+p,
		"/%2f"+rest, "/x/..%2f"+rest, "/x/..%5c"+rest, "/x/..%5C"+rest, "/x%2F..%2f"+rest,
		"/%25"+strings.TrimPrefix(encoded(first), "%")+tail, "/x/..%252f"+rest, "/x/..%c0%af"+rest,
		"/x/..;/"+rest, p+";a=b", p+".", p+"%20", p+"%3fa", p+"%23a",
		strings.ToUpper(p), p+"%00", p+"#a")
	add(false, "/x//.."+p, "//"+p, "/./."+p, "/x/y/../.."+p, "/..", "/../"+rest, "/.//"+rest, "//x/.."+p,
		"/%2E"+p, "/%2e%2e"+p, "/x/.%2e"+p, p[:last]+`\`+p[last+1:], `/\`+rest, `\`+p, `/.\`+rest,
		p+"/", p+"/.", p+"//", p+"/x/..", p+"/./", p+"%2f", p+"%5c", p+"/%2e", p+"/..;/"+rest,
		"/%2F"+rest, "/%2f%2f"+rest, "/x%2f.."+p, "/x%2f%2e%2e%2f"+rest, "/%5c"+rest, "/x%5c..%5c"+rest, "/%2e%2f"+rest,
		"/x/%252e%252e"+p, "/%252f"+rest, "/%%32%66"+rest, "/x/..%u002f"+rest, "/x/..%ef%bc%8f"+rest, "/x/..%e0%80%af"+rest,
		"/;/"+rest, "/;a=b"+p, "/.;/"+rest, p+";/", p+";a=b/x", p+"%3b", p+"%09", p+"%0a", p+"%0d%0ax-a:b", p+"%00.png", p+"%2500",
		"/%00/.."+p, p+"%", p+"%2", p+"%zz", p+"?", p+"?/../..", p+"??", p+"&a=b", p+"?"+other, p+"#"+other, p+"#?", "/?"+p, "/#"+p,
		p+"\x00", p+"\x00/..", p+"\t", p+"\x7f", p+"\xff", p+"\u00ad", "/\u202e"+rest,
		"http://"+refused.host+"/"+p, "HTTP://"+refused.host+p, "https://"+refused.host+p, "//"+refused.host+p, "///"+refused.host+p,
		"http://"+refused.host+":8080"+p, "http://a:b@"+refused.host+p, "http://"+refused.host+"?"+p, "http:"+p, "http:/"+p, "http://"+p, "ftp://"+refused.host+p, "x"+p, rest,
		"http://"+refused.host+"/x/.."+p, "http://"+refused.host+`\..`+p, "http://"+refused.host+"/..%2f"+rest,
		// From a path that is allowed.
		other+up+p, other+"/.."+up+p, other+"/..%2f"+rest, other+"/..%5c"+rest, other+`\..`+p, other+"/..;"+p, other+"?/.."+up+p, other+"#/.."+up+p, other+"%00"+p,
		other+";"+p, other+"%3b"+p, other+"//.."+up+p, other+"/%2e%2e"+p, other+"/.%2e"+up+p, other+"/%252e%252e"+p, other+"%2f.."+up+p,
		p+"/.."+other, p+"%2f.."+other, p+"/..%2f"+strings.TrimPrefix(other, "/"), p+"%00"+other, p+"%3f"+other, p+"%23"+other, p+";"+other, p+`\..`+other,
		other+" "+p, p+" "+other, " "+p, p+"?a HTTP/1.1\r\nhost: a\r\n\r\n")
	for name, line := range map[string]string{
		"X-Original-URL": p, "X-Rewrite-URL": p, "X-Forwarded-Prefix": p, "X-Original-URI": p,
	} {
		// The request is the allowed one: the header is what an application may read.
		out = append(out, attack{name: "header " + name, shown: fmt.Sprintf("`%s: %s` in a request for `%s`", name, line, other), by: allowed, wire: allowed.wire(other, name+": "+line)})
	}
	slices.SortStableFunc(out, func(a, b attack) int {
		if strings.HasPrefix(a.name, "header ") && strings.HasPrefix(b.name, "header ") {
			return strings.Compare(a.name, b.name)
		}
		return 0
	})
	for name, fields := range map[string][]hpack.HeaderField{
		"empty":      refused.fields(""),
		"star":       refused.fields("*"),
		"no slash":   refused.fields(rest),
		"two":        append(fieldsOf(":path", other), refused.fields(p)...),
		"two behind": slices.Insert(refused.fields(other), 4, fieldsOf(":path", p)...),
		"late":       append(refused.fields(other), fieldsOf(":path", p)...),
		"none":       slices.Delete(refused.fields(p), 3, 4),
		"space":      refused.fields(other + " " + p),
		"line":       refused.fields(other + " HTTP/1.1\r\nhost: a\r\nx-attack: " + attackID + "\r\n\r\nGET " + p),
		"nul":        refused.fields(p + "\x00"),
		"capitals":   append(refused.fields(other), fieldsOf(":PATH", p)...),
		"header":     append(refused.fields(other), fieldsOf("path", p, "x-path", p)...),
		"scheme":     append(fieldsOf(":method", refused.method, ":scheme", "http://a"+p+"?", ":authority", refused.host, ":path", other), fieldsOf("x-attack", attackID)...),
		"authority":  append(fieldsOf(":method", refused.method, ":scheme", "http", ":authority", refused.host+p+"?", ":path", other), fieldsOf("x-attack", attackID)...),
	} {
		if name == "scheme" || name == "authority" || name == "header" {
			// These have the allowed path.
			out = append(out, attack{name: "h2 " + name, by: allowed, fields: fields, alone: true})
			continue
		}
		out = append(out, attack{name: "h2 " + name, by: refused, fields: fields, alone: true, path: true})
	}
	return out
}

// methodAttacks write a method that is refused so that it looks like another one.
func methodAttacks(refused, allowed attackAsk) []attack {
	m, p := refused.method, refused.path
	var out []attack
	plain := func(method string, shown bool) {
		x := refused
		x.method = method
		a := attack{name: "method " + method, by: x, wire: x.wire(p), alone: true}
		if shown {
			a.shown = fmt.Sprintf("method `%s` for `%s`", method, m)
		}
		out = append(out, a)
		if !strings.ContainsAny(method, " \t") {
			out = append(out, attack{name: "h2 method " + method, by: x, fields: x.fields(p), alone: true})
		}
	}
	for _, method := range []string{m, strings.ToLower(m), m[:1] + strings.ToLower(m[1:])} {
		plain(method, method != m)
	}
	for _, method := range []string{m + "\t", "\t" + m, m + " ", " " + m, m + "X", "X" + m, m + "\x00", m + "/", "HEAD", "TRACE", "TRACK", "PRI", "PROPFIND", "M-SEARCH", "SOURCE", m + " " + allowed.method} {
		plain(method, false)
	}
	for _, name := range []string{"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override"} {
		a := attack{name: name, by: allowed, wire: allowed.wire(p, name+": "+m)}
		if name == "X-HTTP-Method-Override" {
			a.shown = fmt.Sprintf("`%s: %s` in a `%s`", name, m, allowed.method)
		}
		out = append(out, a)
	}
	out = append(out,
		attack{name: "query", by: allowed, wire: allowed.wire(p + "?_method=" + m)},
		attack{name: "h2 two methods", by: refused, fields: append(fieldsOf(":method", allowed.method), refused.fields(p)...), alone: true},
		attack{name: "h2 late method", by: refused, fields: append(allowed.fields(p), fieldsOf(":method", m)...), alone: true},
	)
	return append(out, tunnelAttacks(refused)...)
}

// tunnelAttacks ask for what is no path.
func tunnelAttacks(by attackAsk) []attack {
	var out []attack
	for _, c := range []struct{ method, target string }{
		{"OPTIONS", "*"}, {by.method, "*"}, {"CONNECT", by.host + ":8080"}, {"CONNECT", "127.0.0.1:80"}, {"CONNECT", by.path}, {"CONNECT", "http://" + by.host + by.path}, {"CONNECT", "*"},
	} {
		x := by
		x.method = c.method
		out = append(out, attack{name: "tunnel " + c.method + " " + c.target, by: x, wire: x.wire(c.target), alone: true})
	}
	x := by
	x.method = "CONNECT"
	return append(out,
		attack{name: "tunnel by an original path", by: by, wire: by.wire(by.path, "x-envoy-original-path: "+by.path), alone: true},
		attack{name: "h2 CONNECT", by: x, fields: append(fieldsOf(":method", "CONNECT", ":authority", by.host+":8080"), fieldsOf("x-attack", attackID)...), alone: true},
		attack{name: "h2 extended CONNECT", by: x, fields: append(fieldsOf(":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":authority", by.host, ":path", by.path), fieldsOf("x-attack", attackID)...), alone: true},
		attack{name: "h2 OPTIONS *", by: by, fields: append(fieldsOf(":method", "OPTIONS", ":scheme", "http", ":authority", by.host, ":path", "*"), fieldsOf("x-attack", attackID)...), alone: true},
	)
}

// identityAttacks claim to be another client.
func identityAttacks(refused, allowed attackAsk) []attack {
	p := refused.path
	var out []attack
	forged := []string{
		"X-Forwarded-Client-Cert: By=spiffe://cluster.local/ns/shop/sa/a;URI=spiffe://" + allowed.peer,
		"x-forwarded-client-cert: URI=spiffe://" + allowed.peer + "\r\nx-forwarded-client-cert: URI=spiffe://" + allowed.peer,
		"x_forwarded_client_cert: URI=spiffe://" + allowed.peer,
		"X-Forwarded-For: 127.0.0.1", "X-Forwarded-For: 10.0.0.1, 127.0.0.1\r\nX-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1", "Forwarded: for=127.0.0.1;by=spiffe://" + allowed.peer,
		"x-envoy-external-address: 127.0.0.1", "x-envoy-internal: true", "x-envoy-peer-metadata-id: sidecar~127.0.0.1~web.shop~shop.svc", "x-istio-attributes: " + base64.StdEncoding.EncodeToString([]byte(allowed.peer)),
		"x-spiffe-id: spiffe://" + allowed.peer, "source.principal: " + allowed.peer,
		"x-envoy-original-dst-host: 127.0.0.1:8080", "x-envoy-decorator-operation: a",
	}
	for i, line := range forged {
		out = append(out, attack{name: fmt.Sprintf("forged %d", i), by: refused, wire: refused.wire(p, line)})
		if name, value, ok := strings.Cut(line, ": "); ok && !strings.Contains(value, "\r\n") {
			out = append(out, attack{name: fmt.Sprintf("h2 forged %d", i), by: refused, fields: refused.fields(p, strings.ToLower(name), value)})
		}
	}
	if allowed.peer != "" {
		domain, rest, _ := strings.Cut(allowed.peer, "/")
		namespace, account, _ := strings.Cut(strings.TrimPrefix(rest, "ns/"), "/sa/")
		for _, id := range []string{
			"", domain + "/ns/" + namespace + "/sa/" + account + "x", domain + "/ns/" + namespace + "/sa/x" + account, domain + "/ns/" + namespace + "x/sa/" + account,
			domain + "/ns/" + namespace + "/sa/" + strings.ToUpper(account), domain + "/ns/other/sa/" + account, domain + "/ns/x/ns/" + namespace + "/sa/" + account,
			domain + "/ns/" + namespace + "/sa/" + account + "/x", "other.domain/ns/" + namespace + "/sa/" + account, domain + ".evil/ns/" + namespace + "/sa/" + account,
			domain + "/ns/" + namespace + "/sa/%77" + account[1:], domain + "/ns/" + namespace + "/sa/" + account + "?a", domain + "/x/" + allowed.peer,
		} {
			x := refused
			x.peer = id
			out = append(out, attack{name: "as " + id, by: x, wire: x.wire(p, forged[0]), alone: true, untrusted: true})
		}
	}
	return out
}

// tokenAttacks show tokens that nobody signed, or hide that there is none.
func tokenAttacks(refused, allowed attackAsk) []attack {
	b64 := base64.RawURLEncoding.EncodeToString
	parts := strings.Split(allowed.token, ".")
	if len(parts) != 3 {
		return nil
	}
	var out []attack
	for name, token := range map[string]string{
		"none": b64([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".", "None": b64([]byte(`{"alg":"None","kid":"example"}`)) + "." + parts[1] + "." + parts[2],
		"HS256": b64([]byte(`{"alg":"HS256","kid":"example"}`)) + "." + parts[1] + "." + parts[2], "unsigned": parts[0] + "." + parts[1] + ".",
		"other claims": parts[0] + "." + b64([]byte(`{"aud":"shop","exp":4102444800,"groups":["staff"],"iss":"https://login.shop.example","sub":"x"}`)) + "." + parts[2],
		"issuer":       parts[0] + "." + b64([]byte(`{"aud":"shop","groups":["staff"],"iss":"https://login.shop.example/"}`)) + "." + parts[2],
		"cut":          allowed.token[:len(allowed.token)-4], "more": allowed.token + "." + parts[2], "padded": allowed.token + "=",
	} {
		x := refused
		x.token = token
		out = append(out, attack{name: "token " + name, by: refused, wire: x.wire(x.path)})
	}
	for i, line := range []string{
		"authorization: Basic " + allowed.token, "authorization: " + allowed.token, "x-authorization: Bearer " + allowed.token, "proxy-authorization: Bearer " + allowed.token,
		"x-jwt-payload: " + parts[1], "x-jwt-assertion: " + parts[1], "cookie: token=" + allowed.token, "sec-istio-auth-userinfo: " + parts[1],
	} {
		out = append(out, attack{name: fmt.Sprintf("token elsewhere %d", i), by: refused, wire: refused.wire(refused.path, line)})
	}
	return out
}

// hostAttacks write a host that is refused so that it looks like another one.
func hostAttacks(refused, allowed attackAsk) []attack {
	h, p := refused.host, refused.path
	var out []attack
	for _, host := range []string{
		h, strings.ToUpper(h), h + ":80", h + ":8080", h + ":", h + ":a", h + ".", h + ".:8080", "%61" + h[1:], "a@" + h, h + "@a", h + "/", h + "\\", h + "#", h + "?", h + " ", "\t" + h, h + "\x00", h + ", " + allowed.host, h + ";", "[" + h + "]", h + ":080",
	} {
		x := refused
		x.host = host
		a := attack{name: "host " + host, by: x, wire: x.wire(p), alone: true}
		switch host {
		case strings.ToUpper(h), h + ":8080", h + ".":
			a.shown = fmt.Sprintf("host `%s` for `%s`", host, h)
		}
		out = append(out, a)
		if !strings.ContainsAny(host, " \t") {
			out = append(out, attack{name: "h2 host " + host, by: x, fields: x.fields(p), alone: true})
		}
	}
	line := func(name, lines string) {
		out = append(out, attack{name: "hosts " + name, by: refused, wire: refused.method + " " + p + " HTTP/1.1\r\nx-attack: " + attackID + "\r\n" + lines + "\r\n", alone: true})
	}
	line("two", "host: "+allowed.host+"\r\nhost: "+h+"\r\n")
	line("two again", "host: "+h+"\r\nhost: "+allowed.host+"\r\n")
	line("none", "")
	line("space", "host : "+h+"\r\n")
	line("folded", "host: "+allowed.host+"\r\n "+h+"\r\n")
	for i, name := range []string{"x-forwarded-host", "x-host", "x-original-host", ":authority", "forwarded"} {
		out = append(out, attack{name: fmt.Sprintf("host header %d", i), by: allowed, wire: allowed.wire(p, name+": "+h), alone: true})
	}
	return append(out,
		attack{name: "absolute for another", by: refused, wire: allowed.wire("http://" + h + p), alone: true},
		attack{name: "another for absolute", by: allowed, wire: refused.wire("http://" + allowed.host + p), alone: true},
		attack{name: "h2 host besides", by: refused, fields: append(allowed.fields(p), fieldsOf("host", h)...), alone: true},
		attack{name: "h2 authority besides", by: refused, fields: append(refused.fields(p), fieldsOf("host", allowed.host)...), alone: true},
		attack{name: "h2 host alone", by: refused, fields: append(slices.Delete(refused.fields(p), 2, 3), fieldsOf("host", h)...), alone: true},
		attack{name: "h2 two authorities", by: refused, fields: append(fieldsOf(":authority", allowed.host), refused.fields(p)...), alone: true},
	)
}

// headerAttacks write a header that is refused so that it looks like another one.
func headerAttacks(refused, allowed attackAsk) []attack {
	name, value, ok := strings.Cut(refused.header, ": ")
	if !ok {
		return nil
	}
	bare := refused
	bare.header = ""
	var out []attack
	for label, lines := range map[string]string{
		"plain": name + ": " + value, "capitals": strings.ToUpper(name) + ": " + value, "two": name + ": a\r\n" + name + ": " + value, "two again": name + ": " + value + "\r\n" + name + ": a",
		"tab": name + ":\t" + value, "no space": name + ":" + value, "spaces": name + ":   " + value + "   ", "folded": name + ":\r\n " + value, "space": name + " : " + value,
		"nul": name + ": " + value + "\x00", "three": name + ": \r\n" + name + ": " + value + "\r\n" + name + ": ", "capital value": name + ": " + strings.ToUpper(value),
		"underscore": strings.ReplaceAll(name, "-", "_") + ": " + value, "connection": "connection: " + name + "\r\n" + name + ": " + value, "cr": "a: b\r" + name + ": " + value,
	} {
		a := attack{name: "header " + label, by: refused, wire: bare.wire(bare.path, lines), alone: true}
		if label == "two" || label == "underscore" || label == "capital value" {
			a.shown = fmt.Sprintf("header `%s` for `%s`", strings.ReplaceAll(lines, "\r\n", "`, `"), refused.header)
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b attack) int { return strings.Compare(a.name, b.name) })
	return append(out,
		attack{name: "h2 header", by: refused, fields: refused.fields(refused.path), alone: true},
		attack{name: "h2 header two", by: refused, fields: bare.fields(bare.path, name, "a", name, value), alone: true},
		attack{name: "h2 header capitals", by: refused, fields: bare.fields(bare.path, strings.ToUpper(name), value), alone: true},
		attack{name: "h2 header line", by: allowed, fields: bare.fields(bare.path, "x-a", "b\r\n"+name+": "+value), alone: true},
	)
}

// framingAttacks hide a request that is refused in one that is allowed.
func framingAttacks(refused, allowed attackAsk) []attack {
	inner, outer := refused.wire(refused.path), allowed
	outer.method = "POST"
	if allowed.method != refused.method || allowed.method == "POST" {
		outer.method = allowed.method
	}
	if allowed.method == "GET" { // the policy may allow nothing else
		outer.method = "GET"
	}
	var out []attack
	add := func(name, wire string) {
		out = append(out, attack{name: "framing " + name, by: allowed, wire: wire, alone: true})
	}
	length := func(n int) string { return fmt.Sprintf("content-length: %d", n) }
	const chunked, end = "transfer-encoding: chunked", "0\r\n\r\n"
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

	add("CL.TE", outer.wire(outer.path, length(len(end+inner)), chunked)+end+inner)
	add("TE.CL", outer.wire(outer.path, chunked, length(4))+chunk(inner)+end)
	for i, line := range []string{
		"Transfer-Encoding: xchunked", "Transfer-Encoding : chunked", "Transfer-Encoding:\tchunked", "Transfer-Encoding: chunked, identity", "Transfer-Encoding: identity, chunked",
		"Transfer-Encoding: identity", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", "Transfer_Encoding: chunked",
		"a: b\r\n Transfer-Encoding: chunked", "Transfer-Encoding:\r\n chunked", "Transfer-Encoding: \"chunked\"", "Transfer-Encoding: chunked\x00", "Transfer-Encoding:\x0bchunked",
		"a: b\nTransfer-Encoding: chunked", "a: b\rTransfer-Encoding: chunked", "Transfer-Encoding: CHUNKED", "Transfer-Encoding: chunked;a=b", "\x00Transfer-Encoding: chunked", "X: \nTransfer-Encoding: chunked",
	} {
		add(fmt.Sprintf("TE %d", i), outer.wire(outer.path, length(len(end+inner)), line)+end+inner)
		add(fmt.Sprintf("TE alone %d", i), outer.wire(outer.path, line)+end+inner)
	}
	for i, lines := range []string{
		"content-length: 0\r\n" + length(len(inner)), length(len(inner)) + "\r\ncontent-length: 0", fmt.Sprintf("content-length: 0, %d", len(inner)), fmt.Sprintf("content-length: +%d", len(inner)),
		fmt.Sprintf("content-length: 0x%x", len(inner)), fmt.Sprintf("content-length: -%d", len(inner)), fmt.Sprintf("content-length:\x0b%d", len(inner)), fmt.Sprintf("content-length : %d", len(inner)), fmt.Sprintf("content_length: %d", len(inner)),
		fmt.Sprintf("content-length: %d\x00", len(inner)), "content-length: 18446744073709551616", fmt.Sprintf("content-length: 0\r\n %d", len(inner)), "content-length: ", length(len(inner)), "a: b",
	} {
		add(fmt.Sprintf("CL %d", i), outer.wire(outer.path, lines)+inner)
	}
	for i, size := range []string{"0;a\n", "0;\n\r\n", "0\n", "00000000000000000\r\n", "0x0\r\n", "-0\r\n", "0 \r\n", " 0\r\n", "0\r", "10000000000000000\r\n", "0;a=\"\r\n\"\r\n", "\r\n0\r\n"} {
		add(fmt.Sprintf("chunk %d", i), outer.wire(outer.path, chunked)+size+"\r\n"+inner+end)
	}
	add("trailer", outer.wire(outer.path, chunked)+"0\r\n"+"x: y\r\n"+strings.TrimSuffix(inner, "\r\n")+"\r\n")
	add("bare LF", strings.ReplaceAll(outer.wire(outer.path), "\r\n", "\n")+inner)
	add("bare LF inside", outer.wire(outer.path, "a: b\n\n"+strings.TrimSuffix(inner, "\r\n\r\n")))
	add("bare CR inside", outer.wire(outer.path, "a: b\r\r"+strings.TrimSuffix(inner, "\r\n\r\n")))
	add("folded", outer.wire(outer.path, "a: b\r\n "+strings.ReplaceAll(strings.TrimSuffix(inner, "\r\n\r\n"), "\r\n", "\r\n ")))
	add("NUL", outer.wire(outer.path, "a: b\x00\r\n\r\n"+strings.TrimSuffix(inner, "\r\n\r\n")))
	add("name with a space", outer.wire(outer.path, "a b: c")+inner)
	add("no colon", outer.wire(outer.path, "abc")+inner)
	add("empty name", outer.wire(outer.path, ": abc")+inner)
	add("line before", "\r\n\r\n"+outer.wire(outer.path)+inner)
	add("pipelined", outer.wire(outer.path)+inner)
	for _, version := range []string{"HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.2", "http/1.1", "HTTP/1.1 ", "HTTP/1.11", "HTTP/1", "", "HTTP/1.1 HTTP/1.1"} {
		add("version "+version, outer.method+" "+outer.path+" "+version+"\r\n"+outer.lines(length(len(end+inner)), chunked)+"\r\n"+end+inner)
	}
	add("0.9", "GET "+refused.path+"\r\n\r\n")
	add("expect", outer.wire(outer.path, "expect: 100-continue", length(len(inner)))+inner)
	add("expect other", outer.wire(outer.path, "expect: x", length(len(inner)))+inner)
	add("websocket", outer.wire(outer.path, "connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==")+inner)
	add("websocket with length", outer.wire(outer.path, "connection: upgrade", "upgrade: websocket", length(0))+inner)
	add("h2c", outer.wire(outer.path, "connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")+inner)
	add("upgrade other", outer.wire(outer.path, "connection: upgrade", "upgrade: TLS/1.0")+inner)
	add("connection names", outer.wire(outer.path, "connection: content-length, transfer-encoding, host, x-forwarded-client-cert", length(len(inner)))+inner)
	two := func(name string, fields []hpack.HeaderField, body string) {
		out = append(out, attack{name: "h2 framing " + name, by: allowed, fields: fields, body: body, alone: true})
	}
	two("transfer-encoding", outer.fields(outer.path, "transfer-encoding", "chunked"), end+inner)
	two("length", outer.fields(outer.path, "content-length", "0"), inner)
	two("two lengths", outer.fields(outer.path, "content-length", "0", "content-length", strconv.Itoa(len(inner))), inner)
	two("connection", outer.fields(outer.path, "connection", "upgrade", "upgrade", "websocket"), inner)
	two("line in a value", outer.fields(outer.path, "a", "b\r\n\r\n"+inner), "")
	two("line in a name", outer.fields(outer.path, "a: b\r\n\r\n"+inner, "b"), "")
	two("line in the method", append(fieldsOf(":method", refused.method+" "+refused.path+" HTTP/1.1\r\nhost: a\r\n\r\nGET"), outer.fields(outer.path)[1:]...), "")
	two("line in the authority", append(append(outer.fields(outer.path)[:2:2], fieldsOf(":authority", "a\r\n\r\n"+inner)...), outer.fields(outer.path)[3:]...), "")
	two("body", outer.fields(outer.path), inner)
	return out
}
