package peers;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.lang.reflect.Array;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Turns Java values into maps, lists, strings and numbers; bytes become base64. */
final class Plain {
    static final SerializerFeature[] FEATURES = {
        SerializerFeature.WriteMapNullValue, SerializerFeature.DisableCircularReferenceDetect,
    };

    private Plain() {
    }

    static Object of(Object value) {
        if (value == null || value instanceof String || value instanceof Number || value instanceof Boolean) {
            return value;
        } else if (value instanceof Enum) {
            return ((Enum<?>) value).name();
        } else if (value instanceof byte[]) {
            return Base64.getEncoder().encodeToString((byte[]) value);
        } else if (value instanceof ByteBuffer) {
            ByteBuffer view = ((ByteBuffer) value).duplicate();
            byte[] bytes = new byte[view.remaining()];
            view.get(bytes);
            return of(bytes);
        } else if (value instanceof Message) {
            return message((Message) value, true);
        } else if (value instanceof MessageQueue) {
            return queue((MessageQueue) value);
        } else if (value instanceof SendResult) {
            return sendResult((SendResult) value);
        } else if (value instanceof PullResult) {
            return pullResult((PullResult) value);
        } else if (value instanceof QueryResult) {
            return of(((QueryResult) value).getMessageList());
        } else if (value instanceof RemotingCommand) {
            return command((RemotingCommand) value);
        } else if (value instanceof Throwable) {
            return Driver.describe((Throwable) value);
        } else if (value instanceof SocketAddress || value instanceof Character) {
            return value.toString();
        } else if (value instanceof Map) {
            Map<String, Object> result = new LinkedHashMap<>();
            ((Map<?, ?>) value).forEach((key, item) -> result.put(key(key), of(item)));
            return result;
        } else if (value instanceof Iterable) {
            List<Object> result = new ArrayList<>();
            ((Iterable<?>) value).forEach(item -> result.add(of(item)));
            return result;
        } else if (value.getClass().isArray()) {
            List<Object> result = new ArrayList<>();
            for (int i = 0; i < Array.getLength(value); i++) {
                result.add(of(Array.get(value, i)));
            }
            return result;
        }
        Object bean = JSON.toJSON(value);
        return bean instanceof Map || bean instanceof Iterable ? of(bean) : String.valueOf(bean);
    }

    private static String key(Object key) {
        if (key instanceof MessageQueue) {
            MessageQueue queue = (MessageQueue) key;
            return queue.getTopic() + "/" + queue.getBrokerName() + "/" + queue.getQueueId();
        }
        return String.valueOf(key);
    }

    static Map<String, Object> queue(MessageQueue queue) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("topic", queue.getTopic());
        result.put("brokerName", queue.getBrokerName());
        result.put("queueId", queue.getQueueId());
        return result;
    }

    static Map<String, Object> message(Message message, boolean withBody) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("topic", message.getTopic());
        result.put("flag", message.getFlag());
        result.put("tags", message.getTags());
        result.put("keys", message.getKeys());
        result.put("properties", message.getProperties());
        byte[] body = message.getBody();
        if (body != null) {
            result.put("bodySize", body.length);
            result.put("bodyCrc", UtilAll.crc32(body));
            if (withBody) {
                result.put("body", of(body));
            }
        }
        if (message instanceof MessageExt) {
            extended((MessageExt) message, result);
        }
        return result;
    }

    private static void extended(MessageExt message, Map<String, Object> result) {
        result.put("msgId", message.getMsgId());
        if (message instanceof MessageClientExt) {
            result.put("offsetMsgId", ((MessageClientExt) message).getOffsetMsgId());
        }
        result.put("brokerName", message.getBrokerName());
        result.put("queueId", message.getQueueId());
        result.put("queueOffset", message.getQueueOffset());
        result.put("commitLogOffset", message.getCommitLogOffset());
        result.put("storeSize", message.getStoreSize());
        result.put("storeBodyCrc", message.getBodyCRC());
        result.put("sysFlag", message.getSysFlag());
        result.put("reconsumeTimes", message.getReconsumeTimes());
        result.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        result.put("transactionId", message.getTransactionId());
        result.put("bornTimestamp", message.getBornTimestamp());
        result.put("storeTimestamp", message.getStoreTimestamp());
        result.put("bornHost", of(message.getBornHost()));
        result.put("storeHost", of(message.getStoreHost()));
    }

    private static Map<String, Object> sendResult(SendResult sent) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("status", of(sent.getSendStatus()));
        result.put("msgId", sent.getMsgId());
        result.put("offsetMsgId", sent.getOffsetMsgId());
        result.put("queue", sent.getMessageQueue() == null ? null : queue(sent.getMessageQueue()));
        result.put("queueOffset", sent.getQueueOffset());
        result.put("transactionId", sent.getTransactionId());
        result.put("regionId", sent.getRegionId());
        result.put("traceOn", sent.isTraceOn());
        try {
            // Only 5.x has it, and only for timer messages.
            result.put("recallHandle", SendResult.class.getMethod("getRecallHandle").invoke(sent));
        } catch (ReflectiveOperationException notThere) {
            result.put("recallHandle", null);
        }
        if (sent instanceof TransactionSendResult) {
            result.put("localState", of(((TransactionSendResult) sent).getLocalTransactionState()));
        }
        return result;
    }

    private static Map<String, Object> pullResult(PullResult pulled) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("status", of(pulled.getPullStatus()));
        result.put("nextBeginOffset", pulled.getNextBeginOffset());
        result.put("minOffset", pulled.getMinOffset());
        result.put("maxOffset", pulled.getMaxOffset());
        result.put("messages", of(pulled.getMsgFoundList()));
        return result;
    }

    static Map<String, Object> command(RemotingCommand command) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("code", command.getCode());
        result.put("language", of(command.getLanguage()));
        result.put("version", command.getVersion());
        result.put("opaque", command.getOpaque());
        result.put("flag", command.getFlag());
        result.put("remark", command.getRemark());
        result.put("extFields", of(command.getExtFields()));
        result.put("serializeType", of(command.getSerializeTypeCurrentRPC()));
        result.put("body", of(command.getBody()));
        return result;
    }
}
