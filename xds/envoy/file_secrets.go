package envoy

import (
	"net/url"
	"strings"
)

// filesPrefix begins the name of a secret with files that Istio's names of secrets cannot have: a list of
// revoked certificates, relative paths, and paths with the character between two of them. The rest is a query
// of a URL with the fields below.
const filesPrefix = "files:"

// fileNames are the names of secrets that an agent reads from files.
type fileNames struct {
	secrets bool // it has those with Istio's names
	lists   bool // and all others
}

// roots is the name of the secret with authorities and a list of revoked certificates, which may be empty. The
// result is empty if Envoy has to read the files itself.
func (n fileNames) roots(file, list string) string {
	istio := list == "" && (file == systemName || strings.HasPrefix(file, "/"))
	switch {
	case n.secrets && istio:
		return "file-root:" + file
	case n.lists:
		q := url.Values{"ca": {file}}
		if list != "" {
			q.Set("crl", list)
		}
		return filesPrefix + q.Encode()
	}
	return ""
}

// pair is the name of the secret with a certificate and its key; empty if Envoy has to read the files itself.
func (n fileNames) pair(cert, key string) string {
	istio := !strings.Contains(cert+key, "~") && strings.HasPrefix(cert, "/") && strings.HasPrefix(key, "/")
	switch {
	case n.secrets && istio:
		return "file-cert:" + cert + "~" + key
	case n.lists:
		return filesPrefix + url.Values{"cert": {cert}, "key": {key}}.Encode()
	}
	return ""
}
