package envoy_test

import (
	"errors"
	"fmt"
	"regexp"
)

// gatewayFailures are the ends of connections that cases name, as curl and openssl write them.
var gatewayFailures = map[string]*regexp.Regexp{
	"refused":          regexp.MustCompile(`connection refused|curl: \(7\)`),
	"no HTTP/3":        regexp.MustCompile(`no filter chain found`),
	"closed":           regexp.MustCompile(`curl: \((52|56)\)`),
	"untrusted server": regexp.MustCompile(`certificate verify failed|curl: \(60\)`),
	// The connection ends before there is a certificate, of which openssl would write at first.
	"no server": regexp.MustCompile(`^exit status \d+: (curl: \(35\) (Recv failure|.*(reset by peer|SYSCALL|unexpected eof))|write:errno=|[0-9A-F]+:error:0A000126:.*unexpected eof)`),
	// What is not HTTP answers, and may close before it has read everything.
	"no HTTP": regexp.MustCompile(`curl: \((1|56)\)`),

	"protocol version":           alert("protocol version", 70),
	"handshake failure":          alert("handshake failure", 40),
	"certificate required":       alert("certificate required", 116),
	"certificate expired":        alert("certificate expired", 45),
	"certificate revoked":        alert("certificate revoked", 44),
	"certificate unknown":        alert("certificate unknown", 46),
	"bad certificate hash value": alert("bad certificate hash value", 114),
	"unknown ca":                 alert("unknown ca", 48),

	"certificate required or reset": alertOrReset("certificate required", 116),
	"unknown ca or reset":           alertOrReset("unknown ca", 48),
}

func alertText(name string, number int) string {
	return fmt.Sprintf(`%s:\S*:SSL alert number %d\b`, name, number)
}

// alert is an alert of TLS. Releases of OpenSSL have different names of files in it.
func alert(name string, number int) *regexp.Regexp {
	return regexp.MustCompile(alertText(name, number))
}

// alertOrReset is an alert of a server behind the gateway. A server that closes before it has read all of the
// client's messages resets the connection, and Envoy may not pass on the alert then. The server's certificate
// came before.
func alertOrReset(name string, number int) *regexp.Regexp {
	return regexp.MustCompile(alertText(name, number) + `|(?s)depth=0.*read:errno=104`)
}

// judgeFailure says whether a connection failed as the case says.
func judgeFailure(want string, err error) error {
	pattern, ok := gatewayFailures[want]
	switch {
	case !ok:
		return fmt.Errorf("fails: %q is not in the table of failures", want)
	case err == nil:
		return errors.New("it is answered, want none")
	case !pattern.MatchString(err.Error()):
		return fmt.Errorf("it fails otherwise than by %q: %w", want, err)
	}
	return nil
}
