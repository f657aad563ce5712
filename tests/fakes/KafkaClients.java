import java.io.*;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.requests.*;

/** Answers lines from its input: what Kafka's own code makes of a message. Bodies are in hex. */
public class KafkaClients {
    public static void main(String[] args) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 16), false);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                out.println(answer(line.split(" ", 5)));
            } catch (Throwable error) {
                out.println("failed: " + error.toString().replace('\n', ' '));
            }
        }
        out.flush();
    }

    static String answer(String[] words) {
        ByteBuffer body = ByteBuffer.wrap(HexFormat.of().parseHex(words[1]));
        if (words[0].equals("refuse")) { // request, error code, message: the answer with that error
            RequestHeader header = RequestHeader.parse(body);
            AbstractRequest request = AbstractRequest.parseRequest(header.apiKey(), header.apiVersion(), new ByteBufferAccessor(body)).request;
            Errors error = Errors.forCode(Short.parseShort(words[2]));
            AbstractResponse response = request.getErrorResponse(0, words.length > 3 ? error.exception(words[3]) : error.exception());
            return response == null ? "none" : hex(header.toResponseHeader(), response.data(), header.apiVersion());
        }
        // answer, key, version: the same answer without unknown tagged fields
        ApiKeys key = ApiKeys.forId(Integer.parseInt(words[2]));
        short version = Short.parseShort(words[3]);
        ResponseHeader header = ResponseHeader.parse(body, key.responseHeaderVersion(version));
        ApiMessage data = AbstractResponse.parseResponse(key, new ByteBufferAccessor(body), version).data();
        if (body.hasRemaining())
            return "failed: " + body.remaining() + " bytes are left";
        data.unknownTaggedFields().clear();
        return hex(header, data, version);
    }

    static String hex(ResponseHeader header, ApiMessage data, short version) {
        ByteBuffer first = MessageUtil.toByteBufferAccessor(header.data(), header.headerVersion()).buffer();
        ByteBuffer second = MessageUtil.toByteBufferAccessor(data, version).buffer();
        ByteBuffer whole = ByteBuffer.allocate(first.remaining() + second.remaining()).put(first).put(second);
        return HexFormat.of().formatHex(whole.array());
    }
}
