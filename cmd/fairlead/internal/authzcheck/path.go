package authzcheck

import (
	"errors"
	"regexp"
	"strconv"
	"strings"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

var (
	escapedSlash = regexp.MustCompile(`(?i)%2f|%5c`)
	unreserved   = regexp.MustCompile(`(?i)%(?:2d|2e|5f|7e|3[0-9]|[46][1-9a-f]|[57][0-9a])`) // RFC 3986, 2.3
	slashes      = regexp.MustCompile(`//+`)
)

// normalize does with a path what a connection manager does before any filter sees it
// (Envoy's source/common/http/path_utility.cc): first escaped slashes, then dots, then
// slashes that repeat. The query and a fragment stay as they are.
func normalize(path string, m *hcmv3.HttpConnectionManager) (string, error) {
	if !strings.HasPrefix(path, "/") && path != "*" {
		return "", errors.New("PATH begins with a slash")
	}
	path, _, _ = strings.Cut(path, "#")
	path, query, hasQuery := strings.Cut(path, "?")
	if m.GetPathWithEscapedSlashesAction() == hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD {
		path = escapedSlash.ReplaceAllStringFunc(path, func(s string) string {
			if strings.EqualFold(s, "%2f") {
				return "/"
			}
			return `\`
		})
	}
	if m.GetNormalizePath().GetValue() && path != "*" {
		path = dots(strings.ReplaceAll(path, `\`, "/"))
	}
	only := 0 // how many slashes there are, if there is nothing else
	if strings.Trim(path, "/") == "" {
		only = len(path)
	}
	if m.GetMergeSlashes() {
		if path = slashes.ReplaceAllString(path, "/"); path == "/" && only > 1 {
			path = "//" // Envoy leaves a path of slashes alone, but for their number
		}
	}
	if hasQuery {
		path += "?" + query
	}
	return path, nil
}

// unescaped is the character of an escape such as %61.
func unescaped(escape string) string {
	n, err := strconv.ParseUint(escape[1:], 16, 8)
	if err != nil {
		return escape
	}
	return string(rune(n))
}

// dots removes "." and ".." (RFC 3986, 5.2.4), also escaped ones and those with parameters
// ("..;a"), and decodes what needs no escape. Empty segments stay.
func dots(path string) string {
	var out []string
	segments := strings.Split(path, "/")[1:]
	for i, s := range segments {
		plain, _, _ := strings.Cut(s, ";")
		s = unreserved.ReplaceAllStringFunc(s, unescaped)
		if s == "." || s == ".." {
			plain = s
		}
		switch plain {
		case ".":
		case "..":
			if len(out) > 0 {
				out = out[:len(out)-1]
			}
		default:
			out = append(out, s)
			continue
		}
		if i == len(segments)-1 {
			out = append(out, "")
		}
	}
	return "/" + strings.Join(out, "/")
}
